"""Whether further instances would find room: GPUs that Ray has free, memory of this machine."""

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.unit.model_files import HUB_MODEL, cached, sparse

pytestmark = pytest.mark.long  # it imports Ray

GIB = 1 << 30


@pytest.fixture
def module() -> ModuleType:
    """Imported here, because it imports Ray: at the top, each worker of the tests would take 0.4
    s."""
    from controller.adapters.ray import ray_launcher

    return ray_launcher


def test_room(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for num_instances, num_gpus, free_gpus, memory, says in (
        (2, 2, 4.0, (0, ""), ""),
        (3, 2, 4.0, (0, ""), "6 GPUs are needed, Ray has 4 free"),
        (1, 1, 0.0, (0, ""), "1 GPUs are needed, Ray has 0 free"),
        (2, 0, 0.0, (GIB, ""), ""),
        (3, 0, 0.0, (GIB, ""), "about 3.0 GiB are needed, 2.0 GiB are available"),
        # `scale --force` starts the instances nevertheless.
        (1, 0, 0.0, (GIB, "m is not all here"), "fit into the memory: m is not all here"),
    ):
        plan = module.ActorPlan("m:f", {}, num_gpus)
        resources = {"CPU": 4.0} | ({"GPU": free_gpus} if free_gpus else {})
        monkeypatch.setattr(module.ray, "available_resources", lambda found=resources: found)
        launcher = module.RayLauncher(
            "n", "/logs", plan, plan, lambda: 2 * GIB, lambda found=memory: found
        )
        told = launcher.no_room(num_instances)
        assert (told.endswith(says), bool(told)) == (True, bool(says))


def test_the_memory_of_an_instance_follows_its_engine_arguments_and_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of a `scale` the weights are in the hub's cache."""
    from huggingface_hub import constants

    from controller.main.roles import instance_memory

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = cached(tmp_path)
    args = {"model": HUB_MODEL, "kv_cache_memory_bytes": GIB}
    plan: Any = SimpleNamespace(profile=None, num_gpus_per_instance=0, engine_args=args)
    without, unknown = instance_memory(plan, {})
    assert unknown == "some/model is not all here yet"
    sparse(snapshot / "model.safetensors", 5 * GIB)
    assert instance_memory(plan, {}) == (without + 5 * GIB, "")
    assert instance_memory(plan, {"max_num_seqs": 4}) == (without + 5 * GIB, "")
    changed = {"kv_cache_memory_bytes": 3 * GIB}
    assert instance_memory(plan, changed) == (without + 7 * GIB, "")


def test_no_machine_is_left_for_an_instance(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = module.ActorPlan("m:f", {})
    nodes = [{"NodeID": each, "Alive": each != "c"} for each in "abc"]
    monkeypatch.setattr(module.ray, "nodes", lambda: nodes)
    head = SimpleNamespace(look=lambda _: None, loss=None, draining={"a": 5.0})
    launcher = module.RayLauncher("n", "/logs", plan, plan, lambda: 0, head=head)
    assert launcher.leaving() == {"a": 5.0}
    assert launcher.no_room(1) == ""
    launcher.avoid(frozenset({"b"}))
    assert launcher.no_room(1) == "by notices, every machine will be taken away"


def test_of_several_models_each_avoids_the_machines_of_which_another_one_has_notice(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.ray, "nodes", lambda: [{"NodeID": "a", "Alive": True}])
    made: list[Any] = []
    monkeypatch.setattr(module, "launch_actor", lambda *given: made.append(given[2]))
    monkeypatch.setattr(module.ray, "get_actor", mock.Mock(side_effect=ValueError))
    plan, all_models = module.ActorPlan("m:f", {}), list[Any]()
    for _ in range(2):
        all_models.append(
            module.RayLauncher("n", "/logs", plan, plan, lambda: 0, beside=all_models)
        )
    first, second = all_models
    first.avoid(frozenset({"a"}))
    second.launch_instance("i-1")
    assert [each.avoided for each in made] == [{"a"}]
    assert second.no_room(1) == "by notices, every machine will be taken away"
    first.avoid(frozenset())
    assert second.no_room(1) == ""


def test_an_instance_is_made_on_none_of_the_avoided_machines(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    def remote(_: type) -> Any:
        return SimpleNamespace(
            options=lambda **options: made.update(options) or SimpleNamespace(remote=print)
        )

    monkeypatch.setattr(module.ray, "remote", remote)
    plan = module.ActorPlan("m:f", {}, avoided=frozenset({"b", "a"}))
    module.launch_actor("n", "i-0", plan, "/logs")
    assert made["label_selector"] == {"ray.io/node-id": "!in(a,b)"}
    assert made["scheduling_strategy"] == "SPREAD"


class FakeRay:
    """The actors that Ray has by name, and what was done to them."""

    def __init__(self, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: dict[str, str] = {}
        self.done: list[tuple[str, ...]] = []
        self.failing = ""
        monkeypatch.setattr(module.ray, "get_actor", self._get)
        monkeypatch.setattr(module.ray, "kill", self._kill)
        monkeypatch.setattr(module, "launch_actor", self._launch)
        plan = module.ActorPlan("m:f", {})
        self.python = ""
        self.launcher = module.RayLauncher(
            "n", "/logs", plan, plan, lambda: 0, python_of=lambda _: self.python
        )

    def _get(self, name: str, _namespace: str) -> str:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def _kill(self, handle: str, no_restart: bool) -> None:
        if self.failing == "kill":
            raise ConnectionError
        self.done.append(("ended" if no_restart else "restarted", handle))
        if no_restart:
            self.actors = {key: each for key, each in self.actors.items() if each != handle}

    def _launch(self, _namespace: str, name: str, plan: Any, _log_dir: str) -> str:
        if self.failing == "launch":
            raise ConnectionError
        self.done.append(("launched", name, plan.python))
        self.actors[name] = f"{name} {plan.python}"
        return self.actors[name]


@pytest.fixture
def fake(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(module, monkeypatch)


def test_a_process_that_is_restarted_or_could_not_be_ended_stays_the_launcher_s(
    fake: FakeRay,
) -> None:
    """Ray starts another process for the same actor, which can be ended for good later."""
    fake.launcher.launch_instance("i-0")
    fake.failing = "kill"
    with pytest.raises(ConnectionError):
        fake.launcher.terminate("i-0")
    fake.failing, fake.done = "", []
    fake.launcher.restart("i-1")
    fake.launcher.restart("i-0")
    for _ in range(2):
        fake.launcher.terminate("i-0")
    assert fake.done == [("restarted", "i-0 "), ("ended", "i-0 ")]


def test_another_interpreter_needs_another_actor(fake: FakeRay) -> None:
    fake.launcher.launch_instance("i-0")
    fake.python = "/new/bin/python"
    fake.launcher.restart("i-0")
    fake.launcher.restart("i-0")
    assert fake.done == [
        ("launched", "i-0", ""),
        ("ended", "i-0 "),
        ("launched", "i-0", "/new/bin/python"),
        ("restarted", "i-0 /new/bin/python"),
    ]
    fake.python, fake.failing, fake.done = "", "launch", []
    assert fake.launcher.is_misplaced("i-0")
    with pytest.raises(ConnectionError):
        fake.launcher.restart("i-0")
    fake.failing = ""
    assert fake.launcher.is_misplaced("i-0"), "it has none now"
    fake.launcher.restart("i-0")
    assert fake.done == [("ended", "i-0 /new/bin/python"), ("launched", "i-0", "")]
    assert not fake.launcher.is_misplaced("i-0")


def test_an_actor_of_an_earlier_controller_may_have_any_interpreter(fake: FakeRay) -> None:
    fake.actors["i-0"] = "found"
    fake.launcher.launch_instance("i-0")
    fake.launcher.restart("i-0")
    assert fake.done == [("ended", "found"), ("launched", "i-0", "")]


def test_an_actor_is_restarted_although_this_controller_could_not_launch_it(fake: FakeRay) -> None:
    """It was made by an earlier controller, and Ray did not answer when this one looked for it."""
    fake.actors["i-0"] = "found"
    fake.launcher.restart("i-0")
    assert fake.done == [("ended", "found"), ("launched", "i-0", "")]
