"""What label probabilities are worth: metrics with intervals, calibration, and thresholds whose error rate holds."""
