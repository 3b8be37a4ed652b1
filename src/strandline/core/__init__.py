"""What repositories and tables stand on: the stores of one repository, records, physical keys, promises, retention."""
