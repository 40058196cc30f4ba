"""Metrics in Prometheus's format: the controller's page, and the frontends' own beside vLLM's."""
