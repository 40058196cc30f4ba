"""How many instances the cluster has, which live, and which keep up.

    autoscaler        when the load is looked at, and what comes of a decision
    scale_rule        the decision: more instances or one less, for the load, and why in words
    autoscale_config  the range of freeness, the bounds, and the times that both go by
    outlook           what a check looks at, and what would be with another number of instances
    instance_starts   which planned instances are launched, come, cannot start; how long it takes
    liveness          who is asked for its status, who stalls, which silent ones are fenced
    slowness          which one steps far more slowly than the others, and is emptied
    busyness          which ones compute though no request is there

An open port proves nothing: instances live by the progress that they report.
"""
