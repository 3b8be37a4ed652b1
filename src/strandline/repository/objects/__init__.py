"""What is written to a branch before it is committed."""
