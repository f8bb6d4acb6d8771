"""Decisions against the package ``decision`` of transformers, on small checkpoints."""
