"""Work on whole ranges of a branch, in steps that can be repeated: load, restore, move, export."""
