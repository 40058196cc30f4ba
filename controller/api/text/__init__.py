"""Texts that the command line and the dashboard share."""
