"""Faults at random, one after the other, in a real cluster under load: `python -m tools.chaos`.

    schedule   which faults, by a seed
    faults     carries one out, and mends what does not mend itself
    streams    the load: streams whose every token is checked
    balance    what must be true once the streams of a turn are over

A turn is a burst of streams with one fault in its middle. It is over when each stream has an
outcome and everything balances.
"""
