"""What can be read at a commit, a tag or a branch."""
