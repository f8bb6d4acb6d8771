"""The commands, a module for each group of them. :mod:`scoreline.command` puts them together."""
