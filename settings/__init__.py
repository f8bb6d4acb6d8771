"""Every knob of the service, in slices, read from ``SCORELINE_*`` environment variables, and how a process logs.

Only entry points read settings; a room is handed its slice and never reaches for a global.
"""
