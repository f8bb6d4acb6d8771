"""One command for whoever has a device for ten minutes: ``python -m benchmarks.device``."""
