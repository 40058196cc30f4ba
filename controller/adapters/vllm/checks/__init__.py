"""Checks of a request before vLLM sees it. Each check takes plain values and names the field that
is wrong."""
