"""The routes that describe the deployment itself: its health, models, metrics and documentation."""
