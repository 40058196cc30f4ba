import os
from collections.abc import AsyncIterator, Iterator

import openai
import pytest

from tests.e2e.cluster import NOTHING_MOVES, Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `last` end the cluster that all others share."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture(scope="session")
def base_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The test's own XDG folders: nothing of the user's clusters is seen or touched."""
    root = tmp_path_factory.mktemp("xdg")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LLUMCTL_", "RAY_"))}
    return env | {
        "XDG_STATE_HOME": str(root / "state"),
        "XDG_CACHE_HOME": str(root / "cache"),
        "XDG_CONFIG_HOME": str(root / "config"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }


@pytest.fixture(scope="session")
def cluster(base_env: dict[str, str]) -> Iterator[Cluster]:
    """Two instances, started once for all tests that leave it as it was."""
    cluster = Cluster(base_env | NOTHING_MOVES, up_args=("-n", "2"))
    with cluster.running():
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**cluster.openai_options) as client:
        yield client


@pytest.fixture
async def async_client(cluster: Cluster) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(**cluster.openai_options) as client:
        yield client
