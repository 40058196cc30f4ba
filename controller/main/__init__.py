"""The composition root: the only room that knows all others."""
