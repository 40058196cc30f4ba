"""What a cluster uses of this machine: memory, ports, temporary folders, processes, Ray's logs."""
