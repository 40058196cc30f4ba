"""`llumctl up`: starts a cluster and waits until it serves."""
