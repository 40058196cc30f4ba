"""vLLM's engine core in an instance: how it is made, warmed up, watched and stepped."""
