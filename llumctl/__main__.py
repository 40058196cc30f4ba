"""`llumctl` and `python -m llumctl`."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def main() -> None:
    _prefer_own_packages()
    from llumctl.app import run

    sys.exit(run(sys.argv[1:]))


def _prefer_own_packages() -> None:
    """Imports the packages beside this one, before PYTHONPATH can bring others of their names."""
    root = str(Path(__file__).resolve().parents[1])
    for name in ("controller", "tui"):
        spec = PathFinder.find_spec(name, [root])
        if spec is not None and spec.loader is not None:
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
