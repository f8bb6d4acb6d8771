"""The public paths of the HTTP API, for all code that writes them into a response or a webhook."""
