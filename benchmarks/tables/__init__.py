"""What scoring the rows of a table takes, in several engines: ``python -m benchmarks.tables``."""
