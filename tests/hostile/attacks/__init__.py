"""What a hostile client sends: a table of attacks on every field, header and route of the OpenAPI document."""
