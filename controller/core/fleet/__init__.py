"""How many instances the cluster has, which of them live, and which keep up.

cluster_spec   what operators want of the cluster, and why an order is refused
rolling        the machine of a rolling restart
autoscaler     when the load is looked at, when instances are added or removed, and the result
outlook        what a check of auto-scaling looks at: the load, also for a different number of
               instances, and the starts
incarnations   which process of a member is which incarnation, and when it is started again
liveness       who is asked for its status, who stalls, and which silent instance is fenced; also
               which one is slow and is emptied, and which one computes without a request

An open port proves nothing: instances count as alive by the progress that they report.
"""
