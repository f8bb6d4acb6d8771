"""Questions and prompts of decisions, without a model."""
