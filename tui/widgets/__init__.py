"""Widgets that paint lines of toned text, and repaint only what changed."""
