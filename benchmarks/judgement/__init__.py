"""Whether intervals, calibrations and thresholds keep what they promise, on made-up rows whose truth is known."""
