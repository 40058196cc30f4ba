"""Live migration in an llumlet: the machines of `controller.core.migration` at work.

`instance_moves` has all moves of this instance, in which it is source (`outgoing`) or destination
(`incoming`); what both need of the llumlet is in `host`.
"""
