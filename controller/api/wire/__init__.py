"""The messages of the control API, as pydantic models."""
