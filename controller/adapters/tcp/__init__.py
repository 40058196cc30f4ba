"""KV blocks from one instance to another over TCP: one connection for each direction."""
