"""Admission beside the scheduler: what of it is put on record."""
