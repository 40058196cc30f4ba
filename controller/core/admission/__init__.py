"""Admission beside the scheduler: how a frontend asks it, and what of it is put on record."""
