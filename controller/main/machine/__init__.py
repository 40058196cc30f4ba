"""What a cluster takes of this machine: memory, ports, temporary folders, processes, Ray's logs."""
