"""`llumctl scale auto`, and an operator's scale beside it, against the real control API."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.settings.settings import Settings
from controller.core.record.event_log import EventKind, LoggedEvent
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control_support import TOKEN, Listener, listening

Captured = pytest.CaptureFixture[str]


@pytest.fixture
async def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with listening(2) as (served, _):
        remember(served.url, token=TOKEN)
        served.cluster.up()
        yield served


async def llumctl(*arguments: str, code: int = 0) -> None:
    assert await asyncio.to_thread(run, list(arguments)) == code, arguments


async def shown(capsys: Captured, *arguments: str) -> dict[str, Any]:
    await llumctl("scale", "auto", *arguments, "-o", "json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def looks(listener: Listener, after_s: float = 10.0) -> None:
    """The controller looks at the load twice, and acts on it; instances still report."""
    listener.cluster.controller.autoscaling.tick()
    for _ in range(2):
        listener.cluster.now_s += after_s
        for member in listener.cluster.controller.roster.instances():
            listener.cluster.report(member.member_id)
        listener.cluster.controller.autoscaling.tick()


def told(listener: Listener) -> list[LoggedEvent]:
    entries = listener.cluster.controller.journal.log.after(None, 1000).entries
    return [event for _, event in entries if event.kind.startswith("autoscale")]


def audited(listener: Listener) -> list[tuple[str, str]]:
    path = listener.audit.path
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(each["action"], each["outcome"]) for each in lines]


async def test_it_is_off_until_somebody_switches_it_on(
    listener: Listener, capsys: Captured
) -> None:
    await llumctl("scale", "auto")
    assert capsys.readouterr().out.splitlines() == [
        "mode       off",
        "instances  2 of 1..16",
        "targets    none",
    ]
    await llumctl(
        *("scale", "auto", "on", "--min", "1", "--max", "4", "--target-ttft", "2s"),
        *("--target-tpot", "80ms", "-m", "night"),
    )
    captured = capsys.readouterr()
    assert captured.err == "revision 1\n"
    assert captured.out.splitlines()[:3] == [
        "mode       on",
        "instances  2 of 1..4",
        "targets    ttft 2.0s tpot 80ms",
    ]
    config = listener.cluster.controller.live.autoscale.config
    assert (config.min_instances, config.max_instances) == (1, 4)
    assert (config.target_ttft_s, config.target_tpot_s) == (2.0, 0.08)
    assert ("set autoscale.mode = on, was off", "done") in audited(listener)
    await llumctl("scale", "auto", "--target-tpot", "none")
    assert listener.cluster.controller.live.autoscale.config.target_tpot_s is None
    assert listener.cluster.controller.live.autoscale.config.mode == "on"
    await llumctl("undo")
    assert listener.cluster.controller.live.autoscale.config.target_tpot_s == 0.08
    capsys.readouterr()
    await llumctl("scale", "auto", "on")
    assert capsys.readouterr().err == "nothing to change\n"
    assert listener.cluster.controller.keeper.spec.revision == 3


async def test_a_dry_run_of_the_command_changes_nothing(
    listener: Listener, capsys: Captured
) -> None:
    await llumctl("scale", "auto", "dry-run", "--max", "3", "--dry-run", code=10)
    assert capsys.readouterr().out.splitlines() == [
        "KEY                      PREVIOUS  WOULD-BE",
        "autoscale.mode           off       dry-run",
        "autoscale.max_instances  16        3",
    ]
    assert listener.cluster.controller.live.autoscale.config.mode == "off"


async def test_the_last_decision_and_why(listener: Listener, capsys: Captured) -> None:
    await llumctl("scale", "auto", "dry-run")
    looks(listener)
    capsys.readouterr()
    found = await shown(capsys)
    assert (found["schema_version"], found["mode"], found["num_wanted"]) == (1, "dry-run", 1)
    last = found["last"]
    assert (last["reason"], last["outcome"]) == ("no_traffic", "would")
    assert (last["deed"], last["removed"]) == ("remove i-0", "i-0")
    assert last["why"] == "no request runs or waits"
    assert found["num_checks_by_reason"] == {"high_lately": 1, "no_traffic": 1}
    await llumctl("status")
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith("autoscale dry-run  2 of 1..16, wanted 1  last remove i-0, not done ")
    assert line.endswith(" ago: no request runs or waits")
    await llumctl("scale", "auto", "on")
    looks(listener)
    assert list(listener.cluster.controller.keeper.spec.drains) == ["i-0"]
    capsys.readouterr()
    assert (await shown(capsys))["last_change"]["outcome"] == "done"


async def test_an_operators_scale_wins_until_it_is_released(
    listener: Listener, capsys: Captured
) -> None:
    controller = listener.cluster.controller
    await llumctl("scale", "auto", "on")
    capsys.readouterr()
    await llumctl("scale", "3", "--dry-run", code=10)
    assert "auto-scaling would leave it at 3" in capsys.readouterr().err
    assert controller.keeper.spec.autoscale_hold is None
    await llumctl("scale", "3", "-y")
    said = capsys.readouterr().err
    assert "auto-scaling leaves it at 3, until llumctl scale auto on\n" in said
    assert ("hold auto-scaling at 3", "done") in audited(listener)
    assert told(listener)[-1].kind is EventKind.AUTOSCALE_HELD
    listener.cluster.up()
    looks(listener)
    assert controller.keeper.spec.drains == {}
    found = await shown(capsys)
    assert found["held"]["num_instances"] == 3
    assert (found["last"]["outcome"], found["last"]["removed"]) == ("would", "i-0")
    await llumctl("scale", "auto")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1)[1] == "on, held at 3"
    assert lines[1].endswith(": llumctl scale auto on releases it")
    revision = controller.keeper.spec.revision
    await llumctl("scale", "3", "-y")
    assert controller.keeper.spec.revision == revision, "it is held there already"
    await llumctl("scale", "auto", "--max", "8")
    assert controller.keeper.spec.autoscale_hold is not None, "a bound releases nothing"
    capsys.readouterr()
    await llumctl("scale", "auto", "on")
    assert "an operator's scale held it, and it is released" in capsys.readouterr().err
    assert controller.keeper.spec.autoscale_hold is None
    assert ("release auto-scaling", "done") in audited(listener)
    assert told(listener)[-1].kind is EventKind.AUTOSCALE_RELEASED
    looks(listener)
    assert list(controller.keeper.spec.drains) == ["i-0"]


async def test_a_scale_to_what_there_is_wins_too(listener: Listener, capsys: Captured) -> None:
    await llumctl("scale", "2", "-y")
    assert listener.cluster.controller.keeper.spec.autoscale_hold is None, "it is off"
    await llumctl("scale", "auto", "dry-run")
    capsys.readouterr()
    await llumctl("scale", "2", "-y")
    assert "auto-scaling leaves it at 2" in capsys.readouterr().err
    hold = listener.cluster.controller.keeper.spec.autoscale_hold
    assert hold is not None
    assert hold.num_instances == 2
    await llumctl("scale", "auto", "off")
    assert listener.cluster.controller.keeper.spec.autoscale_hold is None


async def test_who_keeps_what_was_to_go_wins_too(listener: Listener) -> None:
    controller = listener.cluster.controller
    await llumctl("scale", "auto", "on")
    looks(listener)
    await llumctl("uncordon", "i-0")
    hold = controller.keeper.spec.autoscale_hold
    assert hold is not None
    assert hold.num_instances == 2
    looks(listener)
    assert controller.keeper.spec.drains == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--min", "0"), "--min: must be from 1 to 1024, not 0"),
        (("on", "--target-ttft", "soon"), "--target-ttft"),
        (("on", "--min", "5", "--max", "2"), "min_instances (5) must not exceed max_instances (2)"),
        (("--dry-run",), "there is nothing to change"),
        (("sometimes",), "sometimes"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    listener: Listener, capsys: Captured, arguments: tuple[str, ...], said: str
) -> None:
    await llumctl("scale", "auto", *arguments, code=2)
    assert said in capsys.readouterr().err
    assert listener.cluster.controller.keeper.spec.settings == {}


def test_the_defaults_decide_nothing() -> None:
    assert Settings().autoscale.mode == "off"
