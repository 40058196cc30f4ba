"""The controller's files on disk: the spec, and the last events."""
