"""The figures of the Llumnix paper, simulated and set beside what the paper shows."""
