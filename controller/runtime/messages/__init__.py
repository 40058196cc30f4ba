"""The messages between the processes of a cluster."""
