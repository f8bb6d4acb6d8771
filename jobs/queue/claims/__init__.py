"""Giving waiting chunks to workers."""
