"""A vLLM engine as a model: which requests a step runs, what that costs, what it produces.

Nothing here reads a clock, waits or draws a random number: a step says how long it would have
taken, and whoever runs the model lets that time pass, for real or in a simulation.
"""
