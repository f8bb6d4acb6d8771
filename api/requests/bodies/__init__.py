"""Bodies as bytes: receiving them, unpacking them, and reading their JSON."""
