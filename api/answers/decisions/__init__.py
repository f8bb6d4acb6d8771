"""The answers of decisions: their shapes, and how they are made of scores."""
