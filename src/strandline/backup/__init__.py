"""Backups of whole repositories: all metadata, and the bytes or references to them, as files in any object store."""
