"""What answers show of each item."""
