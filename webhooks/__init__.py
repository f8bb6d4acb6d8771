"""How a webhook leaves the house: signed, to a checked address, within limits. It knows no job and no table.

The conventions are those of Standard Webhooks 1.0 (standardwebhooks.com).
"""
