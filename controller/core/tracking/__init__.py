"""Which instances live, by the progress that they report: an open port proves nothing.

silence    how long each has reported nothing, while the listener itself was awake
fencing    which silent ones are fenced now, so that their requests run elsewhere
"""
