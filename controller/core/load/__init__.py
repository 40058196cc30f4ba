"""What an instance reports of its load and its prefix cache, and the measures of load by which
decisions are made."""
