"""What an instance reports, and the measures of load by which decisions are made."""
