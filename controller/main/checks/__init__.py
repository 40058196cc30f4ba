"""What `up` refuses before anything starts."""
