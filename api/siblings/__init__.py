"""What the processes that serve a port together share."""
