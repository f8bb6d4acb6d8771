"""What is scored and how text becomes tokens: requests, layouts, tokenization, errors. No device, no SQL, no HTTP."""
