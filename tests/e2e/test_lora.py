"""LoRA adapters on real engines: clients call them by name, their requests move, and an adapter
that is unloaded, replaced, or lost with its instance leaves nothing wrong behind."""

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from controller.api.client import ControlClient
from tests.adapters import RANK, make_adapter
from tests.e2e import steering
from tests.e2e.steering import done, json_of
from tools.client_stream import Read, Stream
from tools.cluster import Cluster, running_with, wait_for

CONFIG = f"""
[cluster]
instances = 2

[engine]
enable_lora = true
max_loras = 3
max_lora_rank = {RANK}
max_model_len = 2000

[migration]
enabled = false

[adapters]
one = "one"
"""
client = steering.controlled
_names = map("lora-{}-".format, itertools.count())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lora")


@pytest.fixture(scope="module")
def cluster(base_env: dict[str, str], folder: Path) -> Iterator[Cluster]:
    """`one` is there from the start, `two` and `three` are loaded while the cluster runs."""
    for number, name in enumerate(("one", "two", "three"), start=1):
        make_adapter(folder / name, number)
    with running_with(CONFIG, folder, base_env, "lora") as found:
        for name in ("two", "three"):
            done(found, "lora", "load", name, str(folder / name))
        yield found


def stream(cluster: Cluster, name: str, **more: Any) -> Stream:
    body = {"model": name, "prompt": [400] * 40, "max_tokens": 260, "ignore_eos": True}
    return Stream(cluster, "/v1/completions", body | {"temperature": 0.0} | more, next(_names))


def found(cluster: Cluster, name: str, **more: Any) -> list[Read]:
    return stream(cluster, name, **more).result()


def adapters(cluster: Cluster) -> dict[str, Any]:
    listed = json_of(cluster, "lora", "list")["adapters"]
    return {each["name"]: each for each in listed}


def test_requests_of_three_adapters_move_and_say_the_same(
    cluster: Cluster, client: ControlClient
) -> None:
    with openai.OpenAI(**cluster.openai_options) as api:
        listed = {each.id: each.root for each in api.models.list()}
    # On a CPU, vLLM 0.32 and 0.33 compute requests of the model itself beside others with an
    # adapter: lora/ops/torch_ops/lora_ops.py takes the index -1 for the last slot.
    names = ("one", "two", "three")
    assert set(listed) == {"embedded", *names}
    for name, each in adapters(cluster).items():
        assert sorted(each["loaded_on"]) == ["i-0", "i-1"]
        assert listed[name] == each["digest"]
    kinds = [
        (name, {"max_tokens": 360} | more)
        for name in names
        for more in ({}, {"temperature": 1.0, "seed": 5, "prompt": [300] * 50})
    ]
    expected = [found(cluster, name, **more) for name, more in kinds]
    texts = [str(each[0].token_ids) for each in expected]
    assert len(set(texts)) == len(kinds), "each adapter says something else"
    unmoved, told = list(range(len(kinds))), []
    for _ in range(5):  # on a busy machine a stream may end before its turn: begin it again
        streams = {i: stream(cluster, kinds[i][0], **kinds[i][1]) for i in unmoved}
        moved = set()
        for num_tokens in (20, 60, 100):
            for index, each in streams.items():
                if each.wait_tokens(num_tokens):
                    reports = each.move(client, verify_kv=True)
                    told += [f"{each.name}: {report.outcome} {report.why}" for report in reports]
                    moved |= {index for report in reports if report.outcome == "migrated"}
        assert [each.result() for each in streams.values()] == [expected[i] for i in streams]
        unmoved = [index for index in unmoved if index not in moved]
    assert not unmoved, told
    assert [found(cluster, name, **more) for name, more in kinds] == expected, "caches are right"


def test_what_was_unloaded_ends_as_it_began_and_another_takes_its_name(
    cluster: Cluster, client: ControlClient, folder: Path
) -> None:
    """Its files are gone by then, and other files have their place."""
    path = make_adapter(folder / "four", 4)
    done(cluster, "lora", "load", "four", str(path))
    before = found(cluster, "four")
    using = stream(cluster, "four", max_tokens=700)
    assert using.wait_tokens(10)
    where = using.status(client).instance_id
    shutil.rmtree(path)
    told = done(cluster, "lora", "unload", "four").stderr
    assert f"its requests on {where} go on" in told
    with (
        openai.OpenAI(**cluster.openai_options) as api,
        pytest.raises(openai.NotFoundError, match="`four` does not exist"),
    ):
        api.completions.create(model="four", prompt="x")

    make_adapter(path, 5)
    done(cluster, "lora", "load", "four", str(path))
    other = found(cluster, "four")
    assert other != before
    ended = using.result()
    assert ended[0].token_ids[:260] == before[0].token_ids
    done(cluster, "lora", "load", "same", str(path))
    assert found(cluster, "same") == other
    undone = done(cluster, "undo", "-y").stdout
    assert "lora load same" in undone
    assert "same" not in adapters(cluster)
    done(cluster, "lora", "unload", "four")
    wait_for(lambda: len(copies(cluster)) == 3, "the copies of what is loaded, and no others")


def copies(cluster: Cluster) -> list[Path]:
    plan = cluster.state_dir / "plan.json"
    folder = Path(json.loads(plan.read_text())["temp_dir"]) / "adapters"
    return [path for path in folder.iterdir() if path.is_dir()]


def test_each_wrong_order_has_a_clear_answer(cluster: Cluster, folder: Path) -> None:
    rank = make_adapter(folder / "rank", 6, rank=2 * RANK)
    module = make_adapter(folder / "module", 7, module="self_attn.nosuch")
    for arguments, code, told in (
        (("load", "rank", str(rank)), 2, "its rank is 16, and the engines take 8 at most"),
        (("load", "none", str(folder / "none")), 2, f"there is no folder {folder / 'none'}"),
        (("load", "embedded", str(folder / "one")), 2, "the model itself has this name"),
        (("load", "one", str(folder / "two")), 5, "one is another adapter now"),
        (("load", "one", str(folder / "one")), 0, "nothing to change"),
        (("load", "module", str(module)), 1, "i-0, i-1 cannot use module: "),
        (("unload", "nobody"), 4, "there is no LoRA adapter nobody"),
    ):
        assert told in done(cluster, "lora", *arguments, code=code).stderr, arguments
    assert set(adapters(cluster)["module"]["failed_on"]) == {"i-0", "i-1"}
    with openai.OpenAI(**cluster.openai_options) as api:
        assert "module" not in {each.id for each in api.models.list()}
    done(cluster, "lora", "unload", "module")


@pytest.mark.full
def test_a_killed_instance_loads_its_adapters_again_and_its_requests_go_on(
    cluster: Cluster, client: ControlClient
) -> None:
    names = ("one", "two")
    expected = {name: found(cluster, name, max_tokens=400) for name in names}
    streams = {name: stream(cluster, name, max_tokens=400) for name in names}
    assert all(each.wait_tokens(20) for each in streams.values())
    victim = streams["one"].status(client).instance_id
    assert victim is not None
    os.kill(cluster.instance(victim)["pid"], signal.SIGKILL)
    for name, each in streams.items():
        assert each.result() == expected[name]
    cluster.wait_state("ready")
    wait_for(
        lambda: all(len(each["loaded_on"]) == 2 for each in adapters(cluster).values()),
        "all adapters on both instances",
    )
    assert {name: found(cluster, name, max_tokens=400) for name in names} == expected
