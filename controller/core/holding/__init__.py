"""Late binding, of `llumnix+`: a request that fits nowhere waits at the controller.

An instance's queue binds a request to the one place where it waits. Held back, it goes wherever it
fits first, and room is made for it where that takes the least.

    placement   who of the waiting requests goes where
    kept        which instances are kept for whom
"""
