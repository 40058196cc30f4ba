"""What clients ask for, and when: drawn from distributions, or read from trace files."""
