"""A small language model that gives the service meaningful scores, and the code that trained it.

It starts on any machine in seconds. As a demonstration, it knows only the simple English that this folder generates.
"""
