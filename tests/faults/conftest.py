from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
def share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Shared]]:
    """Makes a shared cluster: of which engine, with which times of moves, with which model."""
    made: list[Shared] = []

    def make(engine: str, timing: dict[str, float], model: str = "") -> Shared:
        def cluster() -> FaultCluster:
            return FaultCluster(tmp_path_factory.mktemp("processes"), engine, timing, model)

        made.append(Shared(cluster))
        return made[-1]

    yield make
    for shared in made:
        shared.end()
