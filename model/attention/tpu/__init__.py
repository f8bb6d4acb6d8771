"""Attention kernels for TPUs, written in Pallas."""
