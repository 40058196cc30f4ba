"""What the dashboard hears, live or from a recording, and what it then knows."""
