"""Emptying: which requests leave which instance for which other one.

    by_hand     moves that operators order: where to, in turn, and what is tried next
    claims      what is for an instance to be empty, and what comes then
    orders      what a round orders an instance: relief, room, a queue head elsewhere
    relieving   the machine of a source, which carries such orders out
    rounds      the controller's machine: who relieves itself towards whom, and where room is made

What is decided goes by the pure functions of `core.rescheduling` and `core.holding`.
"""
