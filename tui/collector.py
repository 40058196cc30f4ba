"""The garbage collector, kept from stopping the dashboard between a status and its picture."""

import contextlib
import gc
from collections.abc import Iterator

FEW_S_WORTH = 20_000
"""New objects between two looks for cycles, a second of a busy cluster: by Python's 700 there were
90 looks a second."""


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """While modules are imported nothing is garbage: looking for some was a tenth of the start. It
    goes on with `settle`, or with an error."""
    gc.disable()
    try:
        yield
    except BaseException:
        gc.enable()
        raise


def settle() -> None:
    """From here on it looks at nothing that is there already, and seldom at the rest: what the
    modules and Textual hold lasts as long as the process, and going through it took 0.1 s each
    time, which a status had to wait. The rest is little, so that it is gone through often: with
    Python's 10 and 10 there were up to 5 MiB of garbage after ten minutes."""
    gc.freeze()
    gc.set_threshold(FEW_S_WORTH, 3, 2)
    gc.enable()
