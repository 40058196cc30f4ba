"""What is refused when there is more than the cluster takes, and when to come again."""
