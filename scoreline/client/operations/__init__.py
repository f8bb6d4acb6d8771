"""What a client can do, each operation written once, as a flow."""
