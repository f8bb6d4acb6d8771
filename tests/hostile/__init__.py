"""A client that knows the OpenAPI document, and sends everything that could stop the service."""
