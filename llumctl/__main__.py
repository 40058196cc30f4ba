"""`llumctl` and `python -m llumctl`."""

import sys

from llumctl.app import run


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
