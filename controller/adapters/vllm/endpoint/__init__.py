"""vLLM's OpenAI app as a frontend serves it: connections, the gate before the app, errors, and the
engine client over a pool of instances."""
