"""A command line's list of names, checked before anything is started."""

import argparse
from collections.abc import Callable, Collection


def names_among(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """For argparse, as the type of an argument."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        wrong = [name for name in names if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"no {wrong[0]!r} among {', '.join(known)}")
        return names

    return parse
