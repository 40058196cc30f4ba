"""The only package of the controller that imports all others: it puts the parts of each process
together."""
