"""The labels of a request as they are sent, the classes that they name, and which item has which.

What they are as tokens is in :mod:`scoring.label_tokens` and :mod:`scoring.label_sequences`.
"""
