"""The command around the measurement. A stand-in for the engine's process sends the messages."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import psutil
import pytest

from controller.api.errors import LlumctlError, UsageError
from controller.api.settings.settings import Settings
from controller.main.machine.ray_environment import NONCE_VARIABLE
from controller.main.profile import run as run_module
from controller.main.profile.points import (
    Done,
    Failed,
    LinkFigures,
    Measured,
    Message,
    NoLink,
    Said,
    StepPoints,
    fit,
)
from controller.main.profile.run import Wanted, profile_of, run
from controller.model.profile import ModelConfig, load_profile
from tests.unit.profile.profile_points import A10, SIZES, points_of

LINK = LinkFigures(num_bytes=10_000_000, stage_s=0.01, one_block_s=0.001)
MEASURED = Measured(SIZES, points_of(), LINK, waited_ratio=0.0)
SCRIPT = """
import os, subprocess, sys, time
task = sys.stdin.buffer.readline()
open({seen!r}, "wb").write(task)
out = int(sys.argv[1])
for line in {lines!r}:
    os.write(out, line + b"\\n")
if {stays}:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open({pids!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
    time.sleep(600)
"""


def wanted(folder: Path, **fields: object) -> Wanted:
    usual = Wanted(folder / "mine.toml", force=False, num_rounds=3, given={})
    return replace(usual, **fields)  # type: ignore[arg-type]


def stand_in(folder: Path, *messages: Message, stays: bool = False) -> tuple[str, ...]:
    """The command of a process that sends these messages, and then ends, or never does."""
    script = SCRIPT.format(
        seen=str(folder / "task"),
        pids=str(folder / "pids"),
        lines=[msgspec.json.encode(message) for message in messages],
        stays=stays,
    )
    return sys.executable, "-c", script


def profiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *messages: Message, **fields: object
) -> list[str]:
    """The texts that were reported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(run_module, "COMMAND", stand_in(folder, *messages))
    said: list[str] = []
    run(Settings(), wanted(folder, **fields), said.append)
    return said


# -- the profile --------------------------------------------------------------------------


def test_the_source_has_the_fits_error(tmp_path: Path) -> None:
    unsteady = replace(MEASURED.points, decode_excess=0.09)
    busy = replace(MEASURED, waited_ratio=0.82, points=unsteady)
    given = {"copy_bytes_per_s": 5e9, "watermark_ratio": 0.0}
    profile = profile_of(busy, fit(busy.points), wanted(tmp_path, given=given), "x")
    assert (profile.copy_bytes_per_s, profile.watermark_ratio) == (5e9, 0)
    told = " ".join(profile.source.split())
    for words in (
        "decode steps took 9% longer in the mean than in the median",
        "Prefill: 8 points, 0.0% off in the median, 0.0% at most.",
        "Mixed: 1 points, 0.0% off in the median, 0.0% at most. Nothing is fitted",
        "for 82% of the time the engine's thread waited for a core",
        "Given by hand: copy_bytes_per_s, watermark_ratio.",
    ):
        assert words in told
    slower = {"decode_base_s": A10.decode_base_s * 2}
    profile = profile_of(busy, fit(busy.points), wanted(tmp_path, given=slower), "x")
    assert "Decode: 5 points, 0.0%" not in profile.source, "the error of what is given"


def test_sizes_are_the_engines_and_a_watermark_comes_out_again(tmp_path: Path) -> None:
    for watermark_blocks in (0, 1, 8, 50, 850):
        sizes = replace(SIZES, watermark_blocks=watermark_blocks)
        measured = replace(MEASURED, sizes=sizes)
        profile = profile_of(measured, fit(measured.points), wanted(tmp_path), "x on y")
        assert (profile.name, profile.description, profile.measured) == ("mine", "x on y", True)
        assert (profile.kv_bytes_per_token, profile.copy_bytes_per_s) == (524288, 1e9)
        config = asdict(ModelConfig.of(profile))
        shared = config.keys() & asdict(sizes).keys()
        assert len(shared) == 6
        assert all(config[name] == getattr(sizes, name) for name in shared)


# -- with a process -----------------------------------------------------------------------


@pytest.mark.process
def test_a_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = profiled(tmp_path, monkeypatch, Said("importing vLLM"), Done(MEASURED))
    assert said[1:] == ["importing vLLM"]
    profile = load_profile(str(tmp_path / "mine.toml"))
    for key, value in asdict(fit(MEASURED.points)).items():
        assert getattr(profile, key) == pytest.approx(value, rel=1e-3)
    task = msgspec.json.decode((tmp_path / "task").read_bytes())
    assert task["with_link"]
    assert task["engine_args"]["enable_prefix_caching"] is False
    given = {"copy_bytes_per_s": 1e9, "kv_bytes_per_token": 77}
    no_link = Done(replace(MEASURED, link=None))
    profiled(tmp_path, monkeypatch, no_link, given=given, force=True)
    assert not msgspec.json.decode((tmp_path / "task").read_bytes())["with_link"]
    assert load_profile(str(tmp_path / "mine.toml")).kv_bytes_per_token == 77


@pytest.mark.process
def test_what_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cache = Failed("the engine could not start", "ValueError: The KV cache")
    unfitted = Done(replace(MEASURED, points=StepPoints()))
    message: Message
    kind: type[LlumctlError]
    for message, kind, why, hint in (
        (no_cache, UsageError, "ValueError: The KV cache", "kv_cache_memory_bytes"),
        (NoLink(), UsageError, "nothing can be copied", "--set copy_bytes_per_s"),
        (Said("loading"), LlumctlError, "died while it was measured", "profile.log"),
        (unfitted, LlumctlError, "embedded cannot be fitted by a profile", "max_model_len"),
    ):
        with pytest.raises(kind) as caught:
            profiled(tmp_path, monkeypatch, message)
        assert type(caught.value) is kind
        assert why in caught.value.message
        assert hint in caught.value.hint
        assert not list(tmp_path.glob("*mine*"))


def test_nothing_starts_for_an_emulated_engine(tmp_path: Path) -> None:
    emulated = Settings.model_validate({"cluster": {"engine": "emulated"}})
    with pytest.raises(UsageError, match="are emulated"):
        run(emulated, wanted(tmp_path), lambda _: None)


PARENT = """
import sys
from pathlib import Path
from controller.main.profile import run
from controller.api.settings.settings import Settings
from llumctl.app import guarded
run.COMMAND = {command!r}
wanted = run.Wanted(Path({path!r}), False, 1, {{}})
sys.exit(guarded(lambda: run.run(Settings(), wanted, lambda text: None) and 0))
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_leaves_no_process_and_no_file(number: int, tmp_path: Path) -> None:
    """After a SIGKILL of the command, the engine's process ends by itself when its stdin ends."""
    command = stand_in(tmp_path, Said("loading"), stays=True)
    if number == signal.SIGKILL:
        command = (sys.executable, "-P", "-c", ENDS_WITH_PARENT.format(tmp_path / "pids"))
    script = PARENT.format(command=command, path=str(tmp_path / "mine.toml"))
    environment = {k: v for k, v in os.environ.items() if k != NONCE_VARIABLE}
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
            assert time.monotonic() < deadline_s
            assert parent.poll() is None, parent.communicate()[1].decode()
            time.sleep(0.02)
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        started = [psutil.Process(pid) for pid in pids]
        parent.send_signal(number)
        _, err = parent.communicate(timeout=60)
        _, alive = psutil.wait_procs(started, timeout=20)
        assert not alive
    finally:
        parent.kill()
        parent.wait()
    assert not list(tmp_path.glob("*mine*"))
    if number != signal.SIGKILL:
        assert parent.returncode == 130
        assert err.decode() == "interrupted\n"


ENDS_WITH_PARENT = """
import os, sys, threading, time
from controller.main.profile import engine_process
sys.stdin.buffer.readline()
threading.Thread(target=engine_process.end_with_parent, daemon=True).start()
open('{}', "w").write(str(os.getpid()))
time.sleep(600)
"""
