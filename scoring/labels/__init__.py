"""The labels of a request: how they are sent, which classes they name, and which item has which."""
