"""What is said of a setting that is wrong, and how a process ends by it."""
