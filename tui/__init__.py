"""The dashboard. It draws what `controller.api` serves and imports nothing else of ours."""
