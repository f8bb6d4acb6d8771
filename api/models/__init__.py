"""The models that requests may name: which there are, and those whose tokenizers are in memory."""
