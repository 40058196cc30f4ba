"""`llumctl profile` measures an engine, and fits and writes its latency profile."""
