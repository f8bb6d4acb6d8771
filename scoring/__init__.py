"""The vocabulary of scoring: requests, layouts, tokenisation, conversion, errors. Pure: no device, no SQL, no HTTP."""
