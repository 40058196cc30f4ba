"""Checks the answers of emulated engines, which `controller.api.token_sequence` defines."""

from collections.abc import Sequence

from controller.api.token_sequence import COUNT, END, FIRST, token


def first_wrong(start: int | None, token_ids: Sequence[int]) -> int | None:
    """Position of the first wrong token; None if all are right.

    Without a `start` (a client that does not know the prompt's ids) the first token gives it,
    so that only the later ones are checked. END counts as right in the last place.
    """
    words = token_ids[:-1] if token_ids and token_ids[-1] == END else token_ids
    if start is None and words:
        if not FIRST <= words[0] < FIRST + COUNT:
            return 0
        start = words[0] - FIRST
    for position, found in enumerate(words):
        if start is None or found != token(start, position):
            return position
    return None
