"""``scoreline run``: score a file of queries and items in bounded memory, and go on after an interruption."""
