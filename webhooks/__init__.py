"""Signing and sending webhooks by the conventions of Standard Webhooks 1.0 (standardwebhooks.com).

Requests go only to addresses that were checked, and are limited in time and size. This room knows neither jobs nor SQL.
"""
