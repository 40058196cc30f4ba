"""One file per format of traces. `trace_file` finds out which one a file has."""
