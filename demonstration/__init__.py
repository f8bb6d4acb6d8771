"""A small language model that makes the service's scores make sense, and everything that made it.

It runs on any machine in seconds. It is a demonstration: it knows the little English that this folder generates.
"""
