"""What operators do to a running cluster: drains, scaling, moves by hand; auto-scaling."""
