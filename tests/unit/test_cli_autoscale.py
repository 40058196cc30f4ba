"""`llumctl scale auto`, and an operator's scale beside it, against the real control API."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.core.record.event_log import EventKind
from llumctl.app import run
from tests.unit.cli_support import facts, remember
from tests.unit.control.control_support import TOKEN, Listener, listening

Captured = pytest.CaptureFixture[str]


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with listening(2) as (served, _):
        remember(served.url, token=TOKEN)
        served.cluster.up()
        yield served


async def scale(*arguments: str, code: int = 0) -> None:
    assert await asyncio.to_thread(run, ["scale", *arguments]) == code, arguments


async def shown(capsys: Captured) -> dict[str, Any]:
    capsys.readouterr()
    await scale("auto", "-o", "json")
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


def held_at(listener: Listener) -> int | None:
    hold = listener.cluster.controller.keeper.spec.autoscale_hold
    return None if hold is None else hold.num_instances


def last_told(listener: Listener) -> EventKind:
    entries = listener.cluster.controller.journal.log.after(None, 1000).entries
    return [event.kind for _, event in entries if event.kind.startswith("autoscale")][-1]


async def test_it_is_off_until_somebody_switches_it_on(
    listener: Listener, capsys: Captured
) -> None:
    await scale("auto")
    known = {"mode": "off", "instances": "2 of 1..16", "targets": "none"}
    assert facts(capsys.readouterr().out) == known
    bounds = ("--min", "1", "--max", "3", "--target-ttft", "2s", "--target-tpot", "80ms")
    await scale("auto", "dry-run", *bounds, "--dry-run", code=10)
    assert "autoscale.mode           off       dry-run" in capsys.readouterr().out
    await scale("auto", "on", *bounds, "-m", "night")
    captured = capsys.readouterr()
    assert captured.err == "revision 1\n"
    told = facts(captured.out)
    assert (told["mode"], told["instances"]) == ("on", "2 of 1..3")
    assert told["targets"] == "ttft 2.0s tpot 80ms"
    await scale("auto", "--target-tpot", "none")
    config = listener.cluster.controller.live.autoscale.config
    assert (config.mode, config.min_instances, config.max_instances) == ("on", 1, 3)
    assert (config.target_ttft_s, config.target_tpot_s) == (2.0, None)
    capsys.readouterr()
    await scale("auto", "on")
    assert capsys.readouterr().err == "nothing to change\n"
    await scale("auto", "on", "--min", "5", code=2)
    told = "min_instances (5) must not exceed max_instances (3)"
    assert told in capsys.readouterr().err
    assert listener.cluster.controller.keeper.spec.revision == 2


async def test_the_last_decision_and_why(listener: Listener, capsys: Captured) -> None:
    await scale("auto", "dry-run")
    looks(listener)
    found = await shown(capsys)
    assert (found["schema_version"], found["mode"], found["num_wanted"]) == (1, "dry-run", 1)
    assert (found["last"]["reason"], found["last"]["outcome"]) == ("no_traffic", "would")
    assert found["num_checks_by_reason"] == {"high_lately": 1, "no_traffic": 1}
    assert await asyncio.to_thread(run, ["status"]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith("autoscale dry-run  2 of 1..16, wanted 1  last remove i-0, not done ")
    assert line.endswith(" ago: no request runs or waits")
    await scale("auto", "on")
    looks(listener)
    assert (await shown(capsys))["last_change"]["outcome"] == "done"


async def test_an_operators_scale_wins_until_it_is_released(
    listener: Listener, capsys: Captured
) -> None:
    await scale("auto", "on")
    capsys.readouterr()
    await scale("3", "--dry-run", code=10)
    assert "auto-scaling would leave it at 3" in capsys.readouterr().err
    assert held_at(listener) is None
    await scale("3", "-y")
    told = "auto-scaling leaves it at 3, until llumctl scale auto on\n"
    assert told in capsys.readouterr().err
    assert '"hold auto-scaling at 3"' in listener.audit.path.read_text()
    assert last_told(listener) is EventKind.AUTOSCALE_HELD
    listener.cluster.up()
    looks(listener)
    found = await shown(capsys)
    assert found["held"]["num_instances"] == 3
    assert (found["last"]["outcome"], found["last"]["removed"]) == ("would", "i-0")
    await scale("auto")
    known = facts(capsys.readouterr().out)
    assert known["mode"] == "on, held at 3"
    assert known["held"].endswith(": llumctl scale auto on releases it")
    await scale("auto", "--max", "8")
    assert held_at(listener) == 3, "a bound releases nothing"
    capsys.readouterr()
    await scale("auto", "on")
    assert "an operator's scale held it, and it is released" in capsys.readouterr().err
    assert held_at(listener) is None
    assert '"release auto-scaling"' in listener.audit.path.read_text()
    assert last_told(listener) is EventKind.AUTOSCALE_RELEASED


async def test_a_scale_to_what_there_is_and_keeping_what_was_to_go_win_too(
    listener: Listener, capsys: Captured
) -> None:
    await scale("auto", "dry-run")
    capsys.readouterr()
    await scale("2", "-y")
    assert "auto-scaling leaves it at 2" in capsys.readouterr().err
    assert held_at(listener) == 2
    await scale("auto", "off")
    assert held_at(listener) is None
    await scale("auto", "on")
    looks(listener)
    assert await asyncio.to_thread(run, ["uncordon", "i-0"]) == 0
    assert held_at(listener) == 2
