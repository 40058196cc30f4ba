"""Emptying: which request leaves which instance, and what is for an instance to be empty."""
