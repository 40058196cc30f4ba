"""What is wrong with a request before vLLM sees it: each check takes plain values and names the
field."""
