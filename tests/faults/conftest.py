from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.faults.cluster import FaultCluster


class Shared:
    """A cluster for one test after the other; one that failed a test is not used again."""

    def __init__(self, make: Callable[[], FaultCluster]) -> None:
        self._make = make
        self._cluster: FaultCluster | None = None

    @contextmanager
    def lend(self) -> Iterator[FaultCluster]:
        if self._cluster is None:
            self._cluster = self._make()
        try:
            yield self._cluster
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        if self._cluster is not None:
            self._cluster.end()
        self._cluster = None


@pytest.fixture(scope="module")
def shared(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Of a module's ENGINE, or of one that a test names, with the module's TIMING of moves."""
    module = request.module
    engine = getattr(request, "param", None) or module.ENGINE

    def make() -> FaultCluster:
        return FaultCluster(tmp_path_factory.mktemp("processes"), engine, module.TIMING)

    shared = Shared(make)
    yield shared
    shared.end()
