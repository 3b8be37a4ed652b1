"""What keeps a lake small and whole: garbage collection, fsck, repair, upgrade."""
