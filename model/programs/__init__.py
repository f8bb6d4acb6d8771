"""Kinds of compiled programs: what a kind consists of, and the heads, which layers and whole steps have in common."""
