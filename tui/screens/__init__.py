"""The screens: the dashboard, one instance, help."""
