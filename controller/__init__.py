"""The cluster: scheduling decisions, the processes that carry them out, and their API."""
