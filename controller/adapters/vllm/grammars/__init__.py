"""Grammars of structured outputs: tried in a separate process before an engine compiles them."""
