"""KV blocks over Gloo: one process group of two for each direction between two instances."""
