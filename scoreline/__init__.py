"""Scoreline: the client and the command."""

__version__ = "0.1.0"
