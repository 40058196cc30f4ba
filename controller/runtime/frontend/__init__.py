"""A frontend process without its HTTP app: where its requests run, and their tokens in order."""
