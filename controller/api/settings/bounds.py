"""Bounds that hold for every cluster; without other imports, so that a command line is checked
before anything is loaded."""

from controller.core.bounds import MAX_INSTANCES as MAX_INSTANCES

MAX_DEADLINE_S = 7 * 86400.0
"""The longest deadline of a drain."""
MAX_REASON_CHARS = 200
