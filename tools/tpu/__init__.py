"""Programs compiled ahead of time for a device that is not there, and what the compiler says about them."""
