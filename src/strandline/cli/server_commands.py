"""`strandline serve`: one address for every tool"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.output import Output
from strandline.cli.session import JsonOption
from strandline.errors import InvalidSettings

SECRET_FILE = "server.key"

if TYPE_CHECKING:
    from strandline.server.configuration import Configuration
    from strandline.server.serve import FirstKeys


def serve(
    folder: Annotated[
        str | None,
        typer.Argument(
            help="The lake: a folder, made if it is not there, or a TOML file of a lake. By default STRANDLINE_LAKE, "
            "or the folder strandline-lake."
        ),
    ] = None,
    config: Annotated[str | None, typer.Option("--config", help="A TOML file of the server.")] = None,
    kv: Annotated[str | None, typer.Option(help="The key-value store, instead of a folder.")] = None,
    blob: Annotated[str | None, typer.Option(help="The object store, instead of a folder.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on; by default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; by default 8000, and 0 for a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; one for a lake in a folder.")] = None,
    public_url: Annotated[str | None, typer.Option(help="Under which clients reach it, behind a proxy.")] = None,
    s3_domain: Annotated[str | None, typer.Option(help="Hosts below this domain are buckets.")] = None,
    s3_region: Annotated[str | None, typer.Option(help="The region that S3's clients are answered.")] = None,
    s3_flat: Annotated[str | None, typer.Option(help="All keys of a bucket lie on this branch.")] = None,
    cert: Annotated[str | None, typer.Option(help="The file of a TLS certificate.")] = None,
    key: Annotated[str | None, typer.Option(help="The file of its key.")] = None,
    behind_proxy: Annotated[bool | None, typer.Option("--behind-proxy", help="A proxy ends TLS.")] = None,
    trusted_proxies: Annotated[
        str | None, typer.Option(help="Addresses of proxies whose X-Forwarded-For counts, with commas between.")
    ] = None,
    synced: Annotated[
        bool | None, typer.Option("--sync/--no-sync", help="Wait for the disk, or not: a power loss may lose writes.")
    ] = None,
    access_log: Annotated[bool | None, typer.Option("--access-log", help="A line for each request.")] = None,
    http: Annotated[
        str | None, typer.Option(help="own, or plain for uvicorn's protocol, without its limits on slow heads.")
    ] = None,
    cors: Annotated[
        str | None, typer.Option(help="Origins whose pages may read answers, with commas between; never with cookies.")
    ] = None,
    connections: Annotated[int | None, typer.Option(help="The most that a worker holds; by default 10,000.")] = None,
    idle_s: Annotated[int | None, typer.Option(help="Seconds for a connection without a request; 75.")] = None,
    head_s: Annotated[int | None, typer.Option(help="Seconds for the head of a request; 10.")] = None,
    object_max_bytes: Annotated[
        int | None, typer.Option(help="The largest object, or part, in one request; by default 5 GiB.")
    ] = None,
    iceberg_credentials: Annotated[
        str | None, typer.Option(help="How clients of Iceberg's catalog reach files on S3: none, signed or vended.")
    ] = None,
    iceberg_role: Annotated[str | None, typer.Option(help="The role that is lent, if vended.")] = None,
    iceberg_sts: Annotated[str | None, typer.Option(help="The endpoint of the STS; by default Amazon's.")] = None,
    iceberg_credentials_s: Annotated[int | None, typer.Option(help="Seconds for which it is lent; 3,600.")] = None,
    new_admin_key: Annotated[
        bool, typer.Option("--new-admin-key", help="Give the first admin another access key, and all rights again.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Say where each value comes from, and what is wrong.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve the lake to lakeFS's clients, to all that speaks S3, and to browsers of its OpenAPI document.

    The first start makes an admin and shows its access key once. The environment can say the same as the options, as
    STRANDLINE_SERVE_PORT and so on. STRANDLINE_SECRET_KEY encrypts the access keys; an embedded lake has a file for it.
    """
    try:
        from strandline.server.configuration import configure  # noqa: PLC0415 - an extra
        from strandline.server.serve import serve as run  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSettings(
            "The packages that serve HTTP are not installed.", next="pip install 'strandline[server]'."
        ) from error
    out = Output(as_json)
    configuration = configure(
        folder,
        file=config,
        kv=kv,
        blob=blob,
        synced=synced,
        host=host,
        port=port,
        workers=workers,
        public_url=public_url,
        s3_domain=s3_domain,
        s3_region=s3_region,
        s3_flat=s3_flat,
        cert=cert,
        key=key,
        behind_proxy=behind_proxy,
        trusted_proxies=trusted_proxies,
        access_log=access_log,
        http=http,
        cors=cors,
        connections=connections,
        idle_s=idle_s,
        head_s=head_s,
        object_max_bytes=object_max_bytes,
        iceberg_credentials=iceberg_credentials,
        iceberg_role=iceberg_role,
        iceberg_sts=iceberg_sts,
        iceberg_credentials_s=iceberg_credentials_s,
    )
    if check:
        _check(out, configuration)
        return
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if configuration.access_log:
        _to_standard_error("strandline.requests")

    keys: list[str] = []

    def made(first: FirstKeys) -> None:
        keys.append(first.access_key_id)
        _show_keys(out, configuration, first)
        sys.stdout.flush()

    def ready(address: str) -> None:
        _announce(out, configuration, address, keys[0] if keys else "KEY")
        sys.stdout.flush()  # the process that started it reads the address from a pipe, while it goes on

    run(configuration, ready, made, new_admin_key=new_admin_key)


def _to_standard_error(name: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    requests = logging.getLogger(name)
    requests.setLevel(logging.INFO)
    requests.propagate = False
    requests.addHandler(handler)


def _check(out: Output, configuration: Configuration) -> None:
    from strandline.server.serve import check as examine  # noqa: PLC0415 - an extra

    for name, value, origin in examine(configuration):
        out.say(f"{name}: {value}  ({origin})", {"name": name, "value": str(value), "origin": origin})
    out.say("The configuration can be served.", {"ok": True})


def _show_keys(out: Output, configuration: Configuration, first: FirstKeys) -> None:
    """Show an access key of the admin: nobody sees it again. Not by `out`, which hides what looks like a secret."""
    key, secret = first.access_key_id, first.secret.reveal()
    if out.as_json:
        print(json.dumps({"access_key_id": key, "secret_access_key": secret}))
        return
    print("This access key of the admin is shown this once:")
    print(f"  access key id      {key}\n  secret access key  {secret}")
    kept = "the variable STRANDLINE_SECRET_KEY"
    if configuration.lake.folder is not None and not configuration.secret_key.reveal():
        kept = f"the file {configuration.lake.folder / SECRET_FILE}"
    print(f"Keep a copy of {kept}: without it all access keys are lost.\n")


def _announce(out: Output, configuration: Configuration, address: str, key: str) -> None:
    """Say where the server is and how to connect."""
    out.say(f"Serving {configuration.lake.folder or configuration.lake.kv} at {address}", {"url": address})
    if not out.as_json:
        print("\nTo connect, with the secret in place of SECRET:", *_connections(address, key), sep="\n  ")
        print(f"Objects are at s3://REPOSITORY/REF/PATH; the REST interface is described at {address}/openapi.json.")


def _connections(address: str, key: str) -> list[str]:
    scheme, _, host = address.partition("://")
    tls = "true" if scheme == "https" else "false"
    return [
        f'lakeFS   lakefs.Client(host="{address}", username="{key}", password="SECRET")',
        f'boto3    boto3.client("s3", endpoint_url="{address}", aws_access_key_id="{key}", '
        'aws_secret_access_key="SECRET", config=boto3.session.Config(signature_version="s3v4"))',
        f'Polars   storage_options={{"aws_endpoint_url": "{address}", "aws_allow_http": "true", '
        f'"aws_access_key_id": "{key}", "aws_secret_access_key": "SECRET"}}',
        f"DuckDB   CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET 'SECRET', ENDPOINT '{host}', URL_STYLE 'path', "
        f"USE_SSL {tls});",
        f'PyIceberg  load_catalog("lake", type="rest", uri="{address}/iceberg", warehouse="REPOSITORY/main", '
        f'credential="{key}:SECRET")',
        f"Spark    --conf spark.hadoop.fs.s3a.endpoint={address} --conf spark.hadoop.fs.s3a.path.style.access=true "
        f"--conf spark.hadoop.fs.s3a.access.key={key} --conf spark.hadoop.fs.s3a.secret.key=SECRET",
    ]
