"""Tools for who develops the service. It runs without them, and its image does not have them."""
