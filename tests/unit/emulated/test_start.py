"""`up --engine emulated`: its settings, what is refused, and the resulting plan."""

import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from controller.adapters.embedded_model.model_folder import MAX_TOKENS
from controller.api.errors import LlumctlError, UsageError
from controller.api.settings.settings import Settings
from controller.api.wire.status import CheckResult
from controller.core.fleet.cluster_spec import AS_STARTED
from controller.main import emulation, roles, up
from controller.main.checks import preflight
from controller.main.doctor import doctor
from controller.main.machine import capacity, run_folders
from controller.main.plan import ClusterPlan
from controller.model.profile import load_profile
from llumctl.config import settings
from tests.unit.emulated.emulated_builders import frames


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_folders, "MAX_RAY_BYTES", 1000)  # no socket will be made there


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ClusterPlan]:
    """The plan with 8 visible GPUs and much memory. The model need not be built."""
    found = str(tmp_path / "model"), tmp_path / "model" / "config.json"
    monkeypatch.setattr(preflight, "resolve_model", lambda *_: found)
    monkeypatch.setattr(preflight, "num_gpus", lambda: 8)
    monkeypatch.setattr(emulation, "available_bytes", lambda: 64 * capacity.GIB)

    def plan_of(**emulated: Any) -> ClusterPlan:
        ports = {
            name: {"port": preflight.free_port("127.0.0.1")} for name in ("endpoint", "control")
        }
        cluster = {"engine": "emulated", "host_cache_gib": 2.0}
        tables = {"cluster": cluster, "emulated": emulated, **ports}
        return up.make_plan(Settings.model_validate(tables))

    return plan_of


def load(text: str = "", flags: settings.Flags | None = None, *engine_args: str) -> Settings:
    Path("c.toml").write_text(text)
    return settings.load(
        config=Path("c.toml"), environ={}, flags=flags or {}, engine_args=engine_args
    )


EMULATED = '[cluster]\nengine = "emulated"\n'

BAD = [
    # text, the message's start, what it must contain
    ('[cluster]\nengine = "vlm"\n', "c.toml:2:", "must be 'vllm' or 'emulated', not 'vlm'"),
    ("[emulated]\nspeed = 0\n", "c.toml:2:", "emulated.speed must be greater than 0, not 0"),
    ("[emulated]\nmode = 'x'\n", "c.toml:2:", "must be 'chunked' or 'prefill-first', not 'x'"),
    (EMULATED + '\nmodel = "Qwen/Qwen3-0.6B"\n', "c.toml:4:", "serves no model but 'embedded'"),
    (EMULATED + "[engine]\n\nseed = 1\n", "c.toml:5:", "engine.seed is an argument of vLLM's"),
    (EMULATED + "[emulated]\nprofile = 'none.toml'\n", "c.toml:4:", "there is no profile file"),
    (EMULATED + "[emulated]\nprofile = '.'\n[engine]\na = 1\n", "c.toml:6:", "engine.a is an"),
]


@pytest.mark.parametrize(("text", "start", "part"), BAD)
def test_bad_settings_name_file_line_and_cause(text: str, start: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(text)
    assert caught.value.message.startswith(start), caught.value.message
    assert part in caught.value.message


def test_bad_flags_are_named() -> None:
    emulated = {("cluster", "engine"): ("--engine", "emulated")}
    with pytest.raises(UsageError, match=r"^MODEL: an emulated engine computes nothing"):
        load(flags={**emulated, ("cluster", "model"): ("MODEL", "a/b")})
    with pytest.raises(UsageError, match=r"^--engine-arg: engine\.seed is an argument of vLLM's"):
        load("", emulated, "seed=1")
    with pytest.raises(UsageError, match=r"^--profile: only emulated engines have a profile"):
        load(flags={("emulated", "profile"): ("--profile", "a10-llama-7b")})
    assert load("[emulated]\nprofile = 'x.toml'\n").emulated.profile == "x.toml", "only as a flag"


def test_a_profile_file_is_relative_to_who_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "p.toml").touch()
    (folder / "c.toml").write_text(EMULATED + "[emulated]\nprofile = 'p.toml'\n")
    found = settings.load(config=folder / "c.toml", environ={})
    assert found.emulated.profile == str(folder / "p.toml")
    flags: settings.Flags = {("emulated", "profile"): ("--profile", "sub/p.toml")}
    assert load(EMULATED, flags).emulated.profile == str(folder / "p.toml")
    assert load(EMULATED).emulated.profile == "a10-llama-7b"


def test_a_profile_that_is_none_is_refused_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("block_size = 16\n")
    shipped = files("controller.model") / "profiles" / "a10-llama-7b.toml"
    too_small = shipped.read_text().replace(
        "max_num_batched_tokens = 2560", "max_num_batched_tokens = 9"
    )
    (tmp_path / "q.toml").write_text(too_small)
    for name, why in (
        ("a10-llama-7c", "did you mean a10-llama-7b"),
        ("p.toml", "missing"),
        ("q.toml", "max_num_batched_tokens must not be below max_num_running"),
    ):
        table = Settings.model_validate({"emulated": {"profile": name}}).emulated
        with pytest.raises(UsageError, match=rf"^emulated\.profile: .*{why}"):
            emulation.profile_of(table)


def test_memory_is_that_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "available_bytes", lambda: 4 * capacity.GIB)
    emulation.check_memory(16, 1)
    monkeypatch.setattr(emulation, "available_bytes", lambda: 5 * capacity.GIB // 2)
    with pytest.raises(LlumctlError, match="16 emulated instances and 1 frontends") as caught:
        emulation.check_memory(16, 1)
    fits = int(caught.value.hint.rpartition(" ")[2])
    emulation.check_memory(fits, 1)
    with pytest.raises(LlumctlError):
        emulation.check_memory(fits + 1, 1)


def test_the_plan_asks_for_no_gpu(plan_of: Callable[..., ClusterPlan]) -> None:
    plan = plan_of()
    assert (plan.num_instances, plan.num_gpus_per_instance) == (4, 0)
    assert plan.profile == load_profile("a10-llama-7b")
    args = plan.engine_args
    assert args["max_model_len"] == args["hf_overrides"]["max_position_embeddings"] == 13_616
    assert args["max_model_len"] > MAX_TOKENS, "what the override is for"
    assert args["scheduling_policy"] == "priority"
    assert args["enable_prefix_caching"] is True, "frontends name beginnings that instances keep"
    assert ClusterPlan.model_validate_json(plan.model_dump_json()) == plan


def test_the_plan_s_engine_is_as_the_settings_say(plan_of: Callable[..., ClusterPlan]) -> None:
    table = {"num_blocks": 90, "mode": "prefill-first", "prefix_caching": False, "speed": 4.0}
    plan = plan_of(**table)
    assert plan.engine_args["enable_prefix_caching"] is False
    engine = roles.engine_factory(plan, AS_STARTED)(lambda detail: None)
    assert (engine.num_gpu_blocks, engine.max_model_len) == (91, 1440)
    ids = list(range(300, 340))
    engine.add(engine.prepare(frames("first", ids), 0))
    engine.step()
    engine.take_events()
    engine.add(engine.prepare(frames("second", ids), 0))
    before_s = engine.emulation.profile_time_s
    (step,) = engine.step()
    assert [emitted.request_id for emitted in step.emitted] == ["second"], "prefill first"
    (admitted,) = engine.take_events()
    assert admitted.num_cached_tokens == 0
    step_s = load_profile("a10-llama-7b").step_time_s([(40, 0)], 0, 0)
    assert engine.emulation.profile_time_s - before_s == pytest.approx(step_s / 4.0)


def test_the_plan_s_engine_has_room_for_blocks_of_the_profile_in_its_host_cache(
    plan_of: Callable[..., ClusterPlan],
) -> None:
    engine = roles.engine_factory(plan_of(), AS_STARTED)(lambda detail: None)
    block_bytes = 16 * load_profile("a10-llama-7b").kv_bytes_per_token
    assert engine._model.config.num_host_blocks == 2 * capacity.GIB // block_bytes


def test_doctor_counts_processes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Settings.model_validate({"cluster": {"engine": "emulated", "instances": 16}})
    planned = preflight.planned(found, 8)
    assert doctor.instance_memory(found, planned).num_bytes == emulation.INSTANCE_BYTES
    gpu = doctor.gpu_check(["GPU 0: X"], found)
    assert (gpu.result, gpu.what) == (CheckResult.OK, "1 visible; emulated instances use none")
    monkeypatch.setattr(doctor, "available_bytes", lambda: 5 * capacity.GIB)
    memory = doctor.memory_check(found, num_gpus=0, already_running=False)
    assert memory.result is CheckResult.OK
