"""What a cluster uses on this machine: memory, ports, temporary folders, processes, Ray's logs."""
