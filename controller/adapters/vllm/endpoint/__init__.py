"""vLLM's OpenAI app in a frontend: connections, the gate before the app, errors, and the engine
client over a pool of instances."""
