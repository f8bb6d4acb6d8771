"""How requests are described, sent again and read. Nothing here does any input or output."""
