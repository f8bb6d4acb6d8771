"""Whole steps: one program computes a step through all layers, for accelerators."""
