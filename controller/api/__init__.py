"""The part that clients of the control API import: settings, wire models and the typed client."""
