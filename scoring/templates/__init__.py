"""Templates: how a query and an item become a prompt, and how the scores of the labels become a relevance."""
