"""Users of a server, their keys, and what they may do. Must not know: repositories, HTTP."""
