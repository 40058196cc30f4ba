"""All code that calls vLLM. Each touch point (a name of vLLM that we use) has a contract test
(tests/contract)."""
