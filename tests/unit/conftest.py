"""Unit tests run without Ray, vLLM and a cluster's head, and without processes of their own unless
they are marked so: a test that starts one by accident fails at once."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.cli_support import Cli
    from tests.unit.fake_controller import FakeController

FUZZ = "tests/unit/fuzz/"
SWEPT = ("seed", "hold")
"""Parameters that run one test many times: a simulation by its seeds, a fault in each phase that a
move is held in."""
NOT_STARTED = {"controller.main.roles", "ray", "vllm"}
_homes = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(FUZZ) or is_one_more(item):
            item.add_marker("long")


def is_one_more(item: pytest.Item) -> bool:
    """Whether the same test runs with another seed or in another phase as well. The first stays
    among the quick ones."""
    callspec = getattr(item, "callspec", None)
    return callspec is not None and any(callspec.indices.get(name, 0) for name in SWEPT)


@pytest.fixture(autouse=True)
def _no_engines(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a unit test started Ray")

    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", refuse)

    start = subprocess.Popen.__init__

    def start_what_may(self: Any, args: Any, *others: Any, **options: Any) -> None:
        words = [args] if isinstance(args, str | bytes | Path) else args
        started = {Path(str(word)).name for word in words}
        assert not started & NOT_STARTED, f"a unit test started {args}"
        # The plotting library's first import in a home folder, where fontconfig is installed.
        if "fc-list" not in started:
            assert request.node.get_closest_marker("process"), f"not marked `process`: {args}"
        start(self, args, *others, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", start_what_may)


@pytest.fixture(autouse=True)
def _empty_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is configured and no cluster runs; nothing of the user's is seen or touched.

    Few tests write there. A folder for each of thousands would take longer to make and to delete
    than most of them take."""
    home = f"{tmp_path_factory.getbasetemp()}/home-{next(_homes)}"
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{home}/config")
    monkeypatch.setenv("XDG_STATE_HOME", f"{home}/state")


@pytest.fixture
def fake() -> Iterator["FakeController"]:
    """The controller of the cluster that commands find."""
    from tests.unit.cli_support import remember
    from tests.unit.fake_controller import FakeController

    with FakeController() as served:
        remember(served.url)
        yield served


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> "Cli":
    from tests.unit.cli_support import Cli

    return Cli(capsys)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
