"""Grammars of structured outputs, tried in a process of their own before an engine compiles
them."""
