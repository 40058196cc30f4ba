"""Bounds to compare policies with: clusters that no real one can be, of one pooled memory."""
