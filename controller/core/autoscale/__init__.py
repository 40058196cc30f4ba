"""How many instances the cluster is to have: enough for its load, and not more.

The caller looks at the cluster whenever a check is due, and carries out what is decided:

    config     the range of freeness, the bounds, and the times
    load       what a check looks at, and F_scale, the freeness of the cluster as one pool
    estimate   what TTFT and TPOT would be with another number of instances
    targets    whether the targets for these hold
    decide     the check: (configuration, state, load, now) to (decision, next state)
    sentences  why it decided so, in words
"""
