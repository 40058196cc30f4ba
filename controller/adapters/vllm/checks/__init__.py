"""Checks of a request before vLLM sees it: each takes plain values and names the field at
fault."""
