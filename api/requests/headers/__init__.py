"""The headers that say how a request is to be answered."""
