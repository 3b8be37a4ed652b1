"""Upkeep of tables by rule: which files are written together, by their size and age."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from strandline.core.retention import DAY_US
from strandline.errors import StrandlineError
from strandline.progress import Progress
from strandline.tables.changing import changing
from strandline.tables.place import TableRef
from strandline.tables.rewriting import Rewriting, chosen_groups, rewrite
from strandline.tables.table import Table, find_tables
from strandline.tables.upkeep_rule import TableUpkeep, UpkeepRule


def keep_up(
    branch: TableRef,
    rules: Sequence[UpkeepRule],
    *,
    dry_run: bool,
    progress: Progress,
    spark: Any,
) -> list[TableUpkeep]:
    """Follow rules on a branch; see `Branch.keep_up`."""
    for rule in rules:
        rule.check()
    asked = ((table, _rule_of(table, rules)) for table in find_tables(branch))
    found = [(table, one) for table, one in asked if one is not None]
    done = []
    for number, (table, rule) in enumerate(found):
        progress("keeping tables up", number, len(found))
        try:
            done.append(_kept(table, rule, dry_run, spark))
        except StrandlineError as error:
            done.append(TableUpkeep(path=table.path, problem=str(error)))
    return done


def _rule_of(table: Table, rules: Sequence[UpkeepRule]) -> UpkeepRule | None:
    return next((rule for rule in rules if fnmatchcase(table.path, rule.tables)), None)


def _kept(table: Table, rule: UpkeepRule, dry_run: bool, spark: Any) -> TableUpkeep:
    record = table.record
    if record.file_format != "parquet":
        return TableUpkeep(path=table.path, left=f"Tables in {record.file_format} are not written anew.")
    # what is staged belongs to the next commit
    committed = Table(table.ref._other(f"{table.ref.name}@"), table.path)  # type: ignore[attr-defined]
    files = committed.files() if committed.exists() else []
    if any("://" in file.info.physical_address for file in files):
        return TableUpkeep(path=table.path, left="Its files lie elsewhere, and are somebody else's to keep.")
    now = table.ref._core.stores.clock.now_us()
    how = Rewriting(
        rule.target_file_bytes,
        rule.sort_by,
        rule.z_order_by,
        min_files=rule.min_files,
        before_us=now - round(rule.min_age_days * DAY_US) if rule.min_age_days else None,
        only_small=True,
    )
    groups = chosen_groups(files, how)
    if not groups:
        return TableUpkeep(path=table.path)
    if dry_run:
        held = [file.info.size for group in groups for file in group]
        return TableUpkeep(path=table.path, before=len(held), bytes_before=sum(held))
    with changing(table, f"keep up files of {table.path}", None, None) as changed:
        made = rewrite(changed, how, None, spark)
    return TableUpkeep(path=table.path, **msgspec.structs.asdict(made))
