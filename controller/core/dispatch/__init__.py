"""Which instance gets a new request, and what the scheduler remembers of each instance for that."""
