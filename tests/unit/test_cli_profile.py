"""`llumctl profile` over a stand-in for the measurement: what it asks for, and what it prints."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.api.settings.settings import Settings
from controller.main.profile.points import LinkFigures, Measured
from controller.main.profile.run import Profiled, Wanted
from llumctl.app import run
from tests.unit.cli_support import Cli
from tests.unit.profile.profile_points import A10, SIZES, points_of

LINK = LinkFigures(num_bytes=10_000_000, stage_s=0.01, one_block_s=0.001)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the measurement was called with; `measured` is what it finds."""
    seen: dict[str, Any] = {"measured": Measured(SIZES, points_of(), LINK, waited_ratio=0.0)}

    def measure(settings: Settings, wanted: Wanted, report: Callable[[str], None]) -> Profiled:
        seen["settings"], seen["wanted"] = settings, wanted
        report("warming up")
        return Profiled(A10, seen["measured"])

    monkeypatch.setattr("controller.main.profile.run.run", measure)
    return seen


def test_what_it_asks_for(calls: dict[str, Any]) -> None:
    line = "profile Qwen/Q -o q.toml --force --rounds 2 -n 3 --engine-arg max-model-len=64"
    assert run([*line.split(), "--set", "copy_bytes_per_s=10e9"]) == 0
    assert calls["wanted"] == Wanted(
        Path("q.toml"), force=True, num_rounds=2, given={"copy_bytes_per_s": 10e9}
    )
    settings = calls["settings"]
    assert (settings.cluster.model, settings.cluster.instances) == ("Qwen/Q", 3)
    assert settings.engine == {"max_model_len": 64}
    assert run(["profile", "Qwen/Qwen3-0.6B"]) == 0
    wanted = Wanted(Path("qwen3-0.6b.toml"), force=False, num_rounds=5, given={})
    assert calls["wanted"] == wanted, "the file has the model's name"


@pytest.mark.usefixtures("calls")
def test_what_it_prints(cli: Cli) -> None:
    out, err = cli("profile", "-o", "my profile.toml")
    lines = out.splitlines()
    assert " ".join(lines[1].split()) == "prefill 64 tokens in 1 step 18.580ms 18.580ms +0.0%"
    assert len([line for line in lines if line.startswith(("prefill", "decode", "mixed"))]) == 16
    for fact in ("0.0% off in the median", "1.00 GB/s over the KV link", "851 blocks of 16 tokens"):
        assert fact in out
    assert err.splitlines() == [
        "warming up",
        "written to my profile.toml",
        "next:  llumctl up --engine emulated --profile 'my profile.toml'",
    ]


def test_an_unsteady_or_busy_machine_is_told(calls: dict[str, Any], cli: Cli) -> None:
    points = replace(points_of(), decode_excess=0.09)
    calls["measured"] = Measured(SIZES, points, None, waited_ratio=0.82)
    out = cli("profile").out
    assert "unsteady   decode steps took 9% longer in the mean" in out
    assert "busy       82% of the time the engine waited for a core that others had" in out
    assert "copy       2.40 GB/s, given" in out
