"""An engine that computes nothing: the engine model in real time, speaking vLLM's wire format."""
