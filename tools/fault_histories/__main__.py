"""Runs simulated histories of a whole cluster under faults, on all cores. Prints those that break a
rule, and exits with 1 if there are any.

    python -m tools.fault_histories 0 10000   10,000 histories, from seed 0 on
    python -m tools.fault_histories 29516     one history, and its last events if it breaks a rule
"""

import argparse
import multiprocessing
import sys
import time

from tools.fault_histories.simulation import HistoryError, run_seed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fault_histories",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("number", type=int, nargs="?", default=1, help="how many seeds")
    options = parser.parse_args(arguments)
    first, number = options.first, options.number
    num_wrong, started_s = 0, time.monotonic()
    with multiprocessing.Pool() as pool:
        for count, why in enumerate(pool.imap(_found, range(first, first + number), 10), 1):
            if why:
                num_wrong += 1
                _say(why if number == 1 else why.splitlines()[0])
            if count % 500 == 0 or count == number:
                took_s = time.monotonic() - started_s
                _say(f"{count} seeds from {first} on in {took_s:.0f} s, {num_wrong} broke a rule")
    return int(num_wrong > 0)


def _found(seed: int) -> str:
    try:
        run_seed(seed)
    except HistoryError as error:
        return str(error)
    return ""


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
