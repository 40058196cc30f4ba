"""Settings from flags, environment and config file, and the errors in them."""
