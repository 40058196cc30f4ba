"""What is recorded: events of the cluster, and one request as its frontend knows it."""
