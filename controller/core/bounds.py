"""Bounds that hold for every cluster. This module imports nothing, so that a command line can be
checked before anything is loaded."""

MAX_INSTANCES = 1024
