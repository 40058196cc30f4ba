"""Load on an OpenAI endpoint: what to send and when, the client that sends it, and the report.

What to send (arrivals, lengths, traces, workload) and the reading of answers (response, check)
are pure; connection, runner and cluster do the input and output.
"""
