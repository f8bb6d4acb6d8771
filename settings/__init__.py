"""All settings, read from ``SCORELINE_*`` environment variables in slices, and the configuration of logging.

Only entry points read settings. Other code is given the slice that it needs and uses no global settings.
"""
