"""Grammars of structured outputs. A separate process tries each one before an engine compiles
it."""
