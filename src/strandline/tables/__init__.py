"""Tables: path prefixes with a table record. Knows no engine."""
