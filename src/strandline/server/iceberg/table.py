"""All operations of the catalog, in one table."""

from __future__ import annotations

from strandline.server.iceberg import credentials, namespaces, oauth, tables, views
from strandline.server.iceberg.config import config_of
from strandline.server.iceberg.operation import IcebergOperation

OPERATIONS: tuple[IcebergOperation, ...] = (
    config_of(lambda: OPERATIONS),
    *oauth.OPERATIONS,
    *namespaces.OPERATIONS,
    *tables.OPERATIONS,
    *credentials.OPERATIONS,
    *views.OPERATIONS,
)
