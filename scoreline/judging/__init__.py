"""Score labelled files, and say what the scores are worth: what ``evaluate``, ``calibrate`` and ``threshold`` do."""
