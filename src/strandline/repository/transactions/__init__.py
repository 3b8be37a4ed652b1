"""Private changes that are published all at once, or not at all."""
