"""What streams of server-sent events report about jobs and about batches."""
