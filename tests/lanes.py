"""How `make test LANES=2` shares tests of engines and clusters out: a file stays whole, as
it shares an engine or a cluster, and so do all files that share the one cluster of tests/e2e."""

from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

_ONE_CLUSTER = ("serving", "tools", "same_as_vllm", "migration", "lifecycle", "faults")
ON_ONE_CLUSTER = frozenset(f"tests/e2e/test_{name}.py" for name in _ONE_CLUSTER)


class Lanes(LoadFileScheduling):  # type: ignore[misc]  # a class without types
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "tests/e2e" if file in ON_ONE_CLUSTER else file


def scheduler(config: Any, log: Any) -> Lanes | None:
    """None, and so xdist's own, where tests are not shared out by file."""
    return Lanes(config, log) if config.getvalue("dist") == "loadfile" else None
