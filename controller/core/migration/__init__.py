"""Live migration as state machines: what source, destination and frontend do about one move.

A move copies the blocks of a running request stage by stage while it decodes on; a last, short
stage stops it. Three parties decide, each by a machine of its own, on plain values:

    source        sees the move through, and owns the request until COMMIT is applied
    destination   reserves, receives, applies COMMIT, and remembers how each move ended
    frontend      reads one epoch only; where source and destination cannot agree who owns the
                  request, it fences an epoch and so decides

Nothing here copies a byte or sends a message: instructions say what the caller is to do, and events
say how that went.
"""
