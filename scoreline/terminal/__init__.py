"""What the terminal shows, and how text from elsewhere is made safe to print."""
