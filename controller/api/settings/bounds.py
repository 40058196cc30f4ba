"""Bounds that hold for every cluster; without imports, so that a command line is checked before
anything is loaded."""

MAX_INSTANCES = 1024
MAX_DEADLINE_S = 7 * 86400.0
"""The longest deadline of a drain."""
MAX_REASON_CHARS = 200
