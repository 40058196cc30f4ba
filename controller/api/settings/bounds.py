"""What is refused however small a cluster is; of the standard library only, so that a command line
can be checked before anything is loaded."""

MAX_INSTANCES = 1024
MAX_DEADLINE_S = 7 * 86400.0
"""Of a drain."""
MAX_REASON_CHARS = 200
