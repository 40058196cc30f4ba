"""What operators ask for: instances, drains, scaling."""
