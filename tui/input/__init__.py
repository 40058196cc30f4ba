"""Keys and typed commands, and what the operator chose to see."""
