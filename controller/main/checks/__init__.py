"""Checks by which `up` refuses to start."""
