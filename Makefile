# The two commands that matter: `make demo` and `make test`. Both set up what they need.
SHELL := /bin/bash
RUN := source .cache/env &&
BIN := .venv/bin
BUDGETS := STRANDLINE_TEST_BUDGETS=1
OFTEN := not mutation and not kill and not suite and not cluster

.PHONY: beside test-s3 test-connect test-newest test-cluster kills s3-suite pyiceberg-suite requests soak fuzz explore docs demo test mutations test-sparks check format bench bench-compare simulate mutation setup servers lock clean golden

demo: setup ## the main job: a PySpark pipeline over real flights
	@$(RUN) $(BIN)/python examples/flights/pipeline.py

test: servers ## the suite, against real servers; TESTS=… for a part
	@$(RUN) $(if $(TESTS),$(BIN)/python -m pytest $(TESTS),$(BUDGETS) $(BIN)/python scripts/side_by_side.py \
		'$(BIN)/python -m pytest -m "not spark and not beside and $(OFTEN)"' '$(BIN)/python -m pytest -m "(spark or beside) and $(OFTEN)"')

mutations: servers ## rules taken out of copies of the source, one by one: the tests must notice each
	@$(RUN) $(BUDGETS) $(BIN)/python -m pytest -q -m mutation tests/mutations

test-sparks: test-s3 test-connect test-newest test-cluster ## the tests of tables again: on S3A, on Spark Connect, and on the newest Spark; and a cluster

test-s3: servers
	@$(RUN) $(BUDGETS) STRANDLINE_TEST_SPARK=s3 $(BIN)/python -m pytest -m "everywhere or s3" tests/spark tests/transactions

test-connect: servers
	@$(RUN) $(BUDGETS) STRANDLINE_TEST_SPARK=connect $(BIN)/python -m pytest -m everywhere tests/spark tests/transactions

test-newest: servers
	@$(RUN) $(BUDGETS) STRANDLINE_TEST_SPARK=newest PYTHONPATH=.cache/spark-newest $(BIN)/python -m pytest -m everywhere tests/spark tests/transactions

test-cluster: servers
	@$(RUN) $(BUDGETS) $(BIN)/python -m pytest -m cluster tests/spark

beside: servers ## test-sparks and kills, two at a time
	@$(BIN)/python scripts/side_by_side.py '$(MAKE) READY=1 test-s3 kills' '$(MAKE) READY=1 test-connect test-newest test-cluster'

kills: servers ## drivers and executors of Spark jobs, killed at some calls of a store and some moments; KILLS=all for every call and 200 moments
	@$(RUN) $(if $(KILLS),,$(BUDGETS)) STRANDLINE_TEST_KILLS=$(KILLS) $(BIN)/python -m pytest -q -m kill tests/transactions tests/shards tests/server tests/test_pipelines.py

s3-suite: servers ## versitygw's tests of S3 against the gateway
	@$(RUN) $(BIN)/python -m pytest -q -s -m suite tests/server/test_s3_suite.py

pyiceberg-suite: servers ## PyIceberg's tests of catalogs against ours, from the release that is locked
	@scripts/pyiceberg_suite.sh
	@$(RUN) STRANDLINE_TEST_PYICEBERG=$(CURDIR)/.cache/pyiceberg-suite $(BIN)/python -m pytest -q -s -m suite tests/iceberg

requests: servers ## requests made of the OpenAPI document: REQUESTS=n for each operation
	@$(RUN) STRANDLINE_TEST_REQUESTS=$(or $(REQUESTS),200) $(BIN)/python -m pytest -q -o timeout=3600 tests/server/test_openapi.py

soak: servers ## processes that are killed at random on SQLite and on PostgreSQL: SECONDS=n of each
	@$(RUN) STRANDLINE_TEST_LOAD_S=$(or $(SECONDS),60) $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/branch/test_processes.py

fuzz: servers ## conditions against Spark: CONDITIONS=n, SEED=n
	@$(RUN) STRANDLINE_TEST_CONDITIONS=$(or $(CONDITIONS),5000) STRANDLINE_TEST_CONDITIONS_SEED=$(or $(SEED),1000) \
		$(BIN)/python -m pytest tests/spark/test_conditions.py

check: setup ## format, lint, types, import layers, licences
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_licences.py

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

simulate: setup ## random interleavings: SEEDS=n, FIRST=n
	@$(RUN) $(BIN)/python -m strandline.testing.simulation --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0)

explore: setup ## every interleaving of two clients, hours of it: OF=branch|shard, OPERATIONS=1x1|2x1|2x2, FAULTS=1, SECONDS=n
	@$(RUN) $(BIN)/python -m strandline.testing.simulation.exhaustive --of $(or $(OF),branch) --operations $(or $(OPERATIONS),2x2) \
		$(if $(FAULTS),--faults) $(if $(SECONDS),--seconds $(SECONDS))

mutation: ## keep the change in the work tree as a mutation that the simulator must catch: NAME=…, WHY=…
	@test -n "$(NAME)" -a -n "$(WHY)" || { echo 'Give NAME=a-short-name and WHY="what goes wrong".'; exit 2; }
	@{ echo "$(WHY)"; echo; git diff --no-color -- src; } > tests/mutations/simulator/$(NAME).patch
	@git checkout -q -- src
	@echo "tests/mutations/simulator/$(NAME).patch; now: make test TESTS='tests/mutations -k $(NAME)'"

bench: setup ## tables, pictures and benchmarks/results.json; ONLY=name for a part
	@$(RUN) $(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-compare: setup ## two commits, in turn: A=commit, B=commit (the work tree), ONLY=name, PAIRS=n, OWN=1 for A's own benchmarks
	@test -n "$(A)" || { echo 'Give A=commit to compare with.'; exit 2; }
	@$(RUN) $(BIN)/python -m benchmarks.compare --a $(A) $(if $(B),--b $(B)) $(if $(ONLY),--only $(ONLY)) \
		$(if $(PAIRS),--pairs $(PAIRS)) $(if $(OWN),--own)

docs: setup ## the documentation as a site, in .cache/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir .cache/site

setup: # READY=1 where it is done already, and others run beside
	@$(if $(READY),,scripts/setup.sh base)

servers:
	@$(if $(READY),,scripts/setup.sh servers)

lock: ## pin versions and hashes anew
	@$(BIN)/uv pip compile --upgrade --generate-hashes --no-emit-index-url --universal --python-version 3.11 -q \
		--custom-compile-command "make lock" pyproject.toml --all-extras requirements/dev.in -o requirements/dev.txt
	@$(BIN)/uv pip compile --upgrade --generate-hashes --no-emit-index-url --universal --python-version 3.11 -q \
		--custom-compile-command "make lock" requirements/uv.in -o requirements/uv.txt
	@$(BIN)/uv pip compile --upgrade --generate-hashes --no-emit-index-url --universal --python-version 3.11 -q \
		--custom-compile-command "make lock" requirements/spark-newest.in -o requirements/spark-newest.txt
	@$(BIN)/uv pip compile --generate-hashes --no-emit-index-url --universal --python-version 3.11 -q \
		--custom-compile-command "make lock" requirements/sqlglot-oldest.in -o requirements/sqlglot-oldest.txt
	@$(BIN)/uv pip compile --upgrade --generate-hashes --no-emit-index-url --universal --python-version 3.11 -q \
		--custom-compile-command "make lock" requirements/aws-cli.in -o requirements/aws-cli.txt

clean:
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
