"""All code that calls vLLM. Each touch point has a contract test (tests/contract)."""
