"""vLLM's engine core in an instance: made, warmed up, watched and stepped."""
