"""Which instances live and keep up, by the progress that they report.

An open port proves nothing.

    silence    how long each has reported nothing, while the listener itself was awake
    fencing    which silent ones are fenced now, so that their requests run elsewhere
    slowness   which one steps far more slowly than the others
"""
