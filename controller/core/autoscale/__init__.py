"""How many instances the cluster is to have: enough for its load, and not more.

The caller looks at the cluster whenever a check is due, and carries out what is decided:

    config     the range of freeness, the bounds, and the times
    load       what a check looks at, and F_scale, the freeness of the cluster as one pool
    decide     the check: (configuration, state, load, now) to (decision, next state)
"""
