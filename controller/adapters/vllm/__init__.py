"""Everything that touches vLLM; each touch point has a contract test (tests/contract)."""
