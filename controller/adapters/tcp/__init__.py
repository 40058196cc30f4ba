"""The copy of KV blocks from one instance to another over TCP, with one connection for each
direction."""
