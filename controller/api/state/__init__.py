"""A cluster's files in the state folder: the run state and the audit log; and how files of the user
are opened, read and replaced."""
