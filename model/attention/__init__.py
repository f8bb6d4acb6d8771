"""Attention: the contract that every kernel keeps, and the kernels."""
