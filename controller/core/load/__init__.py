"""What an instance reports, and the measures of load that decisions go by."""
