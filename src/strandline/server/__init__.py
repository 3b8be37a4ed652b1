"""Servers over a lake. They keep nothing that is not in its stores."""
