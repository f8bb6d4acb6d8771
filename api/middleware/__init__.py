"""The middleware, which each request passes before its route."""
