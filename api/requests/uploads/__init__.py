"""Bodies that are received in pieces: jobs as JSON lines, and files."""
