"""What layers of a decoder compute with: products, rotation, and the recurrence of linear attention."""
