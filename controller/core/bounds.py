"""Bounds that hold for every cluster; without imports, so that a command line is checked before
anything is loaded."""

MAX_INSTANCES = 1024
