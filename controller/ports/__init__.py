"""Narrow interfaces between the cluster's processes and what is outside them, in plain values."""
