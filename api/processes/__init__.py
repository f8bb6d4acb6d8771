"""The processes of one API: the one that serves alone, or a parent and the children that serve its port together."""
