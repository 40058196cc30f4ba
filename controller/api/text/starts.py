"""What a member says of its start while vLLM has not seen its arguments yet."""

LAUNCHING = "launching"
IMPORTING = "importing vLLM"
