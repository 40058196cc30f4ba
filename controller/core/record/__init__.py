"""What is recorded: events of the cluster, one request as its frontend knows it, and what came
within a while."""
