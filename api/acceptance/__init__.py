"""Committing what requests submit, and ringing the bell for it."""
