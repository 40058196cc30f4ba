"""What is recorded: events of the cluster, one request as its frontend knows it, and counts and
latencies within a window of time."""
