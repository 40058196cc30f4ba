"""How many instances the cluster has, which live, and which keep up.

    autoscaler        when the load is looked at, the rule of more or fewer, and what comes of it
    outlook           what a check looks at: what would be with another number, how starts go
    incarnations      which process of a member is which incarnation
    liveness          who is asked for its status, who stalls, which silent ones are fenced
                      also which one steps slowly and is emptied, which compute for nobody

An open port proves nothing: instances live by the progress that they report.
"""
