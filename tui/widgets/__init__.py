"""Widgets that paint lines of toned text, and again only what changed."""
