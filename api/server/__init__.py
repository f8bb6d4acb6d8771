"""The HTTP server: connections with their limits, and what it refuses itself before any route sees it."""
