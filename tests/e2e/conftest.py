from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.emulated import CONFIG
from tests.environment import AT_START
from tools.cluster import NOTHING_MOVES, Cluster, running_with

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One cluster at a time: the shared one's tests, the one that ends it (marked `last`), then
    those with clusters of their own, then those of `six`. Tests of other folders stay where they
    are."""
    places = [n for n, item in enumerate(items) if HERE in item.path.parents]
    ours = sorted((items[n] for n in places), key=_turn)
    for n, item in zip(places, ours, strict=True):
        items[n] = item


def _turn(item: pytest.Item) -> int:
    assert isinstance(item, pytest.Function)
    is_last = item.get_closest_marker("last") is not None
    if "six" in item.fixturenames:
        return 4 if is_last else 3
    if is_last:
        return 1
    has_its_own = hasattr(item.module, "cluster")
    return 0 if "cluster" in item.fixturenames and not has_its_own else 2


@pytest.fixture(scope="session")
def base_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The test's own XDG folders: nothing of the user's clusters is seen or touched. A
    configuration for all clusters by LLUMCTL_TEST_CONFIG (docs/benchmarks.md, on a GPU)."""
    root = tmp_path_factory.mktemp("xdg")
    env = {k: v for k, v in AT_START.items() if not k.startswith(("LLUMCTL_", "RAY_"))}
    if config := AT_START.get("LLUMCTL_TEST_CONFIG"):
        env["LLUMCTL_CONFIG"] = config
    return env | {
        "XDG_STATE_HOME": str(root / "state"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        # vLLM's own, which is no cluster's. Where it is empty, each engine of a first cluster has
        # a process of its own import the model's class, just to look at it.
        "VLLM_CACHE_ROOT": AT_START.get("VLLM_CACHE_ROOT", str(_cache_home() / "vllm")),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "LLUMCTL_CLUSTER_FRONTENDS": "1",
    }


def _cache_home() -> Path:
    return Path(AT_START.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@pytest.fixture(scope="session")
def cluster(base_env: dict[str, str]) -> Iterator[Cluster]:
    """Two instances, started once for all tests that leave it as it was."""
    options = ("--tool-call-parser", "hermes")
    cluster = Cluster(base_env | NOTHING_MOVES, up_args=("-n", "2", *options))
    with cluster.running():
        yield cluster


@pytest.fixture(scope="session")
def six(base_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Emulated, for tests that leave its settings as they were, and a last one that ends it."""
    with running_with(CONFIG, tmp_path_factory.mktemp("six"), base_env, "six") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**cluster.openai_options) as client:
        yield client
