"""Which requests leave which instance for which other, and which do not (paper section 4.4).

The controller pairs instances; a source's llumlet picks its requests. Both by pure functions:

    pairing     sources and destinations of a round, from the freeness of instances alone
    candidate   one request of a source, as far as these decisions look at it
    projection  both instances as they will be when what is under way is over
    worth       what a move costs and wins
    refusals    why a request that could move is not moved now
    relief      the next move of a source, or why none of its requests is moved
"""
