"""Late binding, of `llumnix+`: a request that fits nowhere waits at the controller.

An instance's queue binds a request to the one place where it waits. Held back, it goes wherever it
fits first, and room is made for it where that takes the least.

    held_queue    what waits, in order, and the first of it that fits
    placement     who goes where
    kept          which instances are kept for whom
    room_plan     which requests of an instance leave for which others, so that a blocked one fits
    room_moves    what an instance that is to make room does with such a plan, and without one
    paced_release what frontends do with what was held when the controller died
    view          what is held and why, for people
    blocked       which blocked requests a round makes room for, and where
"""
