"""The controller's files on disk: the spec, incarnations, and the last events."""
