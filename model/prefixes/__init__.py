"""Prefixes in the pool: its blocks, which prefixes have them, and how they are computed."""
