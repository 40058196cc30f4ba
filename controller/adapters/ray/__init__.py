"""Everything that touches Ray."""
