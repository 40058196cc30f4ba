"""A cluster's files in the state folder: the run state, the audit log, and how such files are read
and replaced."""
