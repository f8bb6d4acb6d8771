"""From claimed work to the rows that are computed."""
