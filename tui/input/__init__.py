"""Rebound keys and typed commands."""
