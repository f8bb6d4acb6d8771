"""Attention: the contract that every kernel keeps, the kernels, and which platform uses which."""
