"""Whether further instances would find room: GPUs that Ray has free, memory of this machine."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30
NoRoom = Callable[..., str]


@pytest.fixture
def module() -> ModuleType:
    """Imported here, because it imports Ray: at the top, each worker of the tests would take 0.4
    s."""
    from controller.adapters.ray import ray_launcher

    return ray_launcher


@pytest.fixture
def no_room(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> NoRoom:
    def asked(
        num_instances: int,
        *,
        num_gpus: int = 0,
        free_gpus: float = 0,
        num_bytes: int = 0,
        available: int = 0,
        unknown: str = "",
    ) -> str:
        plan = module.ActorPlan("m:f", {}, num_gpus)
        resources = {"CPU": 4.0} | ({"GPU": free_gpus} if free_gpus else {})
        monkeypatch.setattr(module.ray, "available_resources", lambda: resources)
        launcher = module.RayLauncher(
            "n", "/logs", plan, plan, lambda: available, lambda: (num_bytes, unknown)
        )
        told: str = launcher.no_room(num_instances)
        return told

    return asked


def test_gpus_that_ray_has_not(no_room: NoRoom) -> None:
    assert no_room(2, num_gpus=2, free_gpus=4.0) == ""
    assert no_room(3, num_gpus=2, free_gpus=4.0) == ("6 GPUs are needed, Ray has 4 free")
    assert no_room(1, num_gpus=1) == "1 GPUs are needed, Ray has 0 free"


def test_memory_that_the_machine_has_not(no_room: NoRoom) -> None:
    assert no_room(2, num_bytes=GIB, available=2 * GIB) == ""
    assert no_room(3, num_bytes=GIB, available=2 * GIB) == (
        "about 3.0 GiB are needed, 2.0 GiB are available"
    )


def test_engine_arguments_that_changed_since_up_change_the_memory(tmp_path: Path) -> None:
    from controller.main.roles import instance_memory

    plan: Any = SimpleNamespace(
        profile=None,
        num_gpus_per_instance=0,
        engine_args={"model": str(tmp_path), "kv_cache_memory_bytes": GIB},
    )
    (tmp_path / "model.safetensors").write_bytes(b"x")
    as_started, _ = instance_memory(plan, {})
    assert instance_memory(plan, {"max_num_seqs": 4}) == (as_started, "")
    changed = {"kv_cache_memory_bytes": 3 * GIB}
    assert instance_memory(plan, changed) == (as_started + 2 * GIB, "")


def test_the_weights_of_a_hub_model_are_memory_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of a `scale` the weights are in the hub's cache."""
    from huggingface_hub import constants

    from controller.main.roles import instance_memory

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--some--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    args = {"model": "some/model", "kv_cache_memory_bytes": GIB}
    plan: Any = SimpleNamespace(profile=None, num_gpus_per_instance=0, engine_args=args)
    without, unknown = instance_memory(plan, {})
    assert unknown == "some/model is not all here yet"
    with (snapshot / "model.safetensors").open("wb") as file:
        file.truncate(5 * GIB)
    assert instance_memory(plan, {}) == (without + 5 * GIB, "")


def test_weights_of_which_nobody_knows_the_size_are_no_room(no_room: NoRoom) -> None:
    """`scale --force` starts the instances nevertheless."""
    assert no_room(1, num_bytes=GIB, available=2 * GIB, unknown="m is not all here yet") == (
        "it is not known whether their weights fit into the memory: m is not all here yet"
    )


def test_what_is_not_known_speaks_against_nothing(no_room: NoRoom) -> None:
    assert no_room(1000) == ""


def test_a_process_that_could_not_be_ended_is_ended_when_asked_again(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = module.ActorPlan("m:f", {})
    launcher = module.RayLauncher("n", "/logs", plan, plan, lambda: 0)
    launcher._handles["i-0"] = "handle"
    killed: list[str] = []

    def fails(_handle: str, **_: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(module.ray, "kill", fails)
    with pytest.raises(ConnectionError):
        launcher.terminate("i-0")
    monkeypatch.setattr(module.ray, "kill", lambda handle, **_: killed.append(handle))
    launcher.terminate("i-0")
    launcher.terminate("i-0")
    assert killed == ["handle"]


def test_a_process_that_is_restarted_stays_the_launcher_s(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray starts another process for the same actor, which can be ended for good later."""
    plan = module.ActorPlan("m:f", {})
    launcher = module.RayLauncher("n", "/logs", plan, plan, lambda: 0)
    launcher._handles["i-0"] = "handle"
    killed: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        module.ray, "kill", lambda handle, no_restart: killed.append((handle, no_restart))
    )
    launcher.restart("i-1")
    launcher.restart("i-0")
    launcher.terminate("i-0")
    assert killed == [("handle", False), ("handle", True)]
