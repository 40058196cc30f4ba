"""Live moves of a vLLM engine's requests: the source's half, the destination's half, and the KV
blocks."""
