"""Narrow interfaces between the shells and the world, in plain values."""
