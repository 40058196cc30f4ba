"""What an operator can do: every action once, when it is locked, and what became of it."""
