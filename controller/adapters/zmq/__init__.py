"""Messages between processes over ZeroMQ."""
