"""Decisions only: functions and state machines over plain values.

Nothing here imports ray, torch, vllm or asyncio, does IO, reads a clock or logs;
`now` and randomness come in as arguments.
"""
