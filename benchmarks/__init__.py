"""Measurements beside vLLM's own server. Figures, not tests: nothing here fails on a time."""
