"""How many instances the cluster has, which live, and which keep up.

    autoscaler        more instances or one less, for the load: the rule, and why in words
    autoscale_config  the range of freeness, the bounds, and the times that it goes by
    outlook           what a check looks at, and what would be with another number of instances
    liveness          how long each instance has reported nothing, and which silent ones are fenced
    slowness          which one steps far more slowly than the others

An open port proves nothing: instances live by the progress that they report.
"""
