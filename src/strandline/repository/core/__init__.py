"""What every other room of the repository stands on: records, physical keys, promises, retention."""
