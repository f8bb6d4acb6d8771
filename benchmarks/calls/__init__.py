"""What a synchronous call costs: ``python -m benchmarks.calls``."""
