"""Settings from flags, environment and file, and what is wrong with them."""
