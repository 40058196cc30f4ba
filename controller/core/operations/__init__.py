"""What operators ask for: the spec that keeps it, why an order is refused, rolling restarts."""
