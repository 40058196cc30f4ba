"""What crosses the control API, as pydantic models."""
