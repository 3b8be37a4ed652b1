"""What a branch record may become: pure transitions, which know no store, no clock and no thread."""
