"""Small rerankers, made from a seed, and what the code of their publishers says of 200 pairs."""
