"""What a batch of many requests takes: ``python -m benchmarks.batches``."""
