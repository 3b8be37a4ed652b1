"""What a user of a shard holds: writers and readers."""
