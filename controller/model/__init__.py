"""A model of a vLLM engine: which requests run in a step, how long the step takes, and which tokens
it produces.

Nothing in this package reads a clock, waits or draws a random number. A step says how long it would
take, and the caller lets that time pass, in reality or in a simulation."""
