"""The composition root: it alone knows every layer."""
