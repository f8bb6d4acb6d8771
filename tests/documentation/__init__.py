"""The documentation says what the code does, and its links lead somewhere."""
