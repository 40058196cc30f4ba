"""What crosses the control API: settings, wire models and the typed client."""
