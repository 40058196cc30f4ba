"""Which requests are replayed after the death of their instance, and why others are not."""
