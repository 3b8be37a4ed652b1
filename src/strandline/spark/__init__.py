"""Spark: reading and writing tables natively. Plain DataFrame calls only, so that it runs on Spark Connect as well."""

from strandline.spark.changes import changes, consolidated, rows_of
from strandline.spark.changing import change_rows
from strandline.spark.copying import copier, exporter
from strandline.spark.folding import folder, tree_workers
from strandline.spark.format.source import register
from strandline.spark.garbage import surveyor
from strandline.spark.importing import import_workers
from strandline.spark.moving import mover
from strandline.spark.read import collected, read_table
from strandline.spark.rewriting import rewriters
from strandline.spark.row_diff import row_diff
from strandline.spark.session import configure
from strandline.spark.verifying import verify
from strandline.spark.write import write_table

__all__ = [
    "change_rows",
    "changes",
    "collected",
    "configure",
    "consolidated",
    "copier",
    "exporter",
    "folder",
    "import_workers",
    "mover",
    "read_table",
    "register",
    "rewriters",
    "row_diff",
    "rows_of",
    "surveyor",
    "tree_workers",
    "verify",
    "write_table",
]
