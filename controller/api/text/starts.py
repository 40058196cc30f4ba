"""What a member reports of its start before vLLM has seen its arguments."""

LAUNCHING = "launching"
IMPORTING = "importing vLLM"
