"""Metrics in Prometheus's format: the controller's page, and what frontends add to vLLM's."""
