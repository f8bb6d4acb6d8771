"""The decoder of all model families: its configuration, its layers, and reading its weights."""
