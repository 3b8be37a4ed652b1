"""The branch machine: one record behind one compare-and-swap, staged layers, and the protocols over them."""
