"""Iceberg's REST catalog: tables, namespaces and views of every branch, tag and commit, for any engine."""
