"""Decisions: questions about one state, each asked in a prompt of its own."""
