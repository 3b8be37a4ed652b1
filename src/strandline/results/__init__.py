"""What calls return where there may be many rows: objects, differences, commits."""
