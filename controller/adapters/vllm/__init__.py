"""All code that calls vLLM; each touch point has a contract test (tests/contract)."""
