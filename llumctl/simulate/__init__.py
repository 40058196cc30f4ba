"""Simulated runs for the command line: many at once, their tables, plots, and searches."""
