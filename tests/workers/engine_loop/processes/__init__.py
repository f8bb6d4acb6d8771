"""Real processes of the engine loop: how they start, fail, stop, and are killed."""
