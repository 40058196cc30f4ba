"""Live moves in an llumlet, which carries out what the machines of `controller.core.migration` say.

`instance_moves` has all moves of this instance, in which it is the source (`outgoing`) or the
destination (`incoming`); `stage_copies` copies the blocks of an outgoing one. `host` is the part of
the llumlet that both use.
"""
