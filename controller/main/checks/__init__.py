"""Checks that can make `up` refuse to start a cluster."""
