"""An engine that computes nothing: the engine model runs in real time and speaks vLLM's wire
format."""
