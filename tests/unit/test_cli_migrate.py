"""`llumctl migrate` against the real control API: what it prints, exits with, and what stands on
stderr when a request does not move."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.api.client import ControlClient
from controller.api.errors import EXIT_INTERRUPTED
from controller.core.migration.move_records import MovePlan
from controller.core.record.request_record import RequestState
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control_support import TOKEN, Listener, listening
from tests.unit.move_support import Source, serve_running_request

Captured = pytest.CaptureFixture[str]


class Bed:
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.book = serve_running_request(listener)
        self.source = Source(listener, self.book)


@pytest.fixture
async def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bed]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("controller.core.emptying.by_hand.TIMED_PATIENCE_S", 0.2)
    async with listening(3) as (served, _):
        remember(served.url, token=TOKEN)
        yield Bed(served)


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


def facts(text: str) -> dict[str, str]:
    """The first block: a name and a value per line."""
    lines = text.split("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


async def test_a_move(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("migrate", "r-1", "--to", "i-2", "--verify-kv", "-m", "make room") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    (asked,) = bed.source.moved
    assert (asked.order.verify_kv, asked.order.reason) == (True, "make room")
    assert facts(captured.out) == {
        "request": "r-1",
        "client-id": "cmpl-1",
        "from": "i-0",
        "to": "i-2",
        "outcome": "migrated",
        "migration": asked.order.migration_id,
        "tokens": "153",
        "blocks": "10, 2 were there",
        "bytes": "4.0 KiB",
        "copy": "12.0ms",
        "took": "50.0ms",
        "downtime": "24.4ms",
        "excess": "4.4ms",
    }
    stages = captured.out.split("\n\n")[1].splitlines()
    assert [line.split() for line in stages] == [
        ["STAGE", "BLOCKS", "BYTES", "COPY"],
        ["0", "9", "3.6", "KiB", "10.0ms"],
        ["1", "1", "410", "B", "2.0ms"],
    ]


async def test_a_move_by_the_clients_id_in_the_machine_formats(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("migrate", "cmpl-1", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["downtime_s"]) == ("migrated", 0.0244)
    assert found["attempts"][0]["stages"][1] == {
        "num_blocks": 1,
        "num_bytes": 410,
        "copy_time_s": 0.002,
    }
    bed.book.moved("r-1", "i-0", 1)
    assert await llumctl("migrate", "cmpl-1", "-o", "name") == 0
    assert capsys.readouterr().out == f"{bed.source.moved[-1].order.migration_id}\n"


async def test_a_dry_run(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("migrate", "r-1", "--dry-run") == 10
    captured = capsys.readouterr()
    assert captured.err == ""
    assert facts(captured.out) == {
        "request": "r-1",
        "client-id": "cmpl-1",
        "from": "i-0",
        "to": "i-1",
        "outcome": "would move",
        "tokens": "153",
        "blocks": "10",
        "bytes": "4.0 KiB",
        "copy": "12.5ms",
        "downtime": "about 7.3ms",
    }
    assert bed.source.moved == []
    bed.listener.cluster.report("i-1", num_free_blocks=3)
    assert await llumctl("migrate", "r-1", "--dry-run", "--to", "i-1") == 5
    captured = capsys.readouterr()
    assert facts(captured.out)["outcome"] == "refused"
    assert captured.err == (
        "error: request r-1 cannot move from i-0 to i-1: the destination has not enough free"
        " blocks\ntry:   llumctl status      llumctl requests\n"
    )


async def test_one_that_waits_would_not_be_down_for_its_move(bed: Bed, capsys: Captured) -> None:
    bed.source.plan = MovePlan(0, 0, 0, None)
    assert await llumctl("migrate", "r-1", "--dry-run") == 10
    found = facts(capsys.readouterr().out)
    assert (found["blocks"], found["downtime"]) == ("0", "none, the request waits for memory")


async def test_a_move_that_came_to_nothing(bed: Bed, capsys: Captured) -> None:
    bed.source.ends = [("kept", "transfer"), ("resumed", "no_answer")]
    assert await llumctl("migrate", "r-1") == 1
    captured = capsys.readouterr()
    assert captured.err == (
        "error: request r-1 runs again at i-0, the move failed: the destination did not"
        " answer in time\ntry:   llumctl requests r-1\n"
    )
    attempts = captured.out.split("\n\n")[-1].splitlines()
    first, second = (asked.order.migration_id for asked in bed.source.moved)
    assert [line.split()[:3] for line in attempts] == [
        ["MIGRATION", "TO", "OUTCOME"],
        [first, "i-1", "kept"],
        [second, "i-2", "resumed"],
    ]
    bed.source.ends = [("ended", "")]
    assert await llumctl("migrate", "r-1", "--to", "i-1") == 1
    assert "request r-1 ended before it could move" in capsys.readouterr().err


async def test_what_cannot_move(bed: Bed, capsys: Captured) -> None:
    bed.source.refusal = "in_prefill"
    assert await llumctl("migrate", "r-1") == 5
    captured = capsys.readouterr()
    assert "cannot move from i-0 to i-1: its prompt is still being computed" in captured.err
    assert list(facts(captured.out))[-1] == "why", "no figures of what was not begun"
    for instance_id in ("i-1", "i-2"):
        bed.listener.cluster.report(instance_id, draining=True)
    assert await llumctl("migrate", "r-1") == 5
    assert (
        "error: request r-1 cannot move from i-0: no instance can take it: i-1: it is draining;"
        " i-2: it is draining\n"
    ) in capsys.readouterr().err


async def test_what_is_refused_before_anybody_is_asked(bed: Bed, capsys: Captured) -> None:
    bed.listener.cluster.report("i-2", draining=True)
    for arguments, code, words in (
        (("r-9",), 4, "there is no request 'r-9'"),
        (("r-1", "--to", "i-9"), 4, "there is no instance 'i-9'"),
        (("r-1", "--to", "i-0"), 5, "request r-1 is on i-0 already"),
        (("r-1", "--to", "i-2"), 5, "instance i-2 cannot move it: it is draining"),
    ):
        assert await llumctl("migrate", *arguments) == code
        captured = capsys.readouterr()
        assert (captured.out, words in captured.err) == ("", True), captured.err
    bed.book.ended("r-1", RequestState.FINISHED, "stop")
    assert await llumctl("migrate", "r-1") == 5
    assert "request r-1 has finished" in capsys.readouterr().err
    serve_running_request(bed.listener, num_choices=2)
    assert await llumctl("migrate", "cmpl-1") == 6
    assert "names 2 sequences: r-1, r-2" in capsys.readouterr().err


async def test_a_move_that_is_not_over_in_time(bed: Bed, capsys: Captured) -> None:
    bed.source.silent = True
    assert await llumctl("migrate", "r-1", "--timeout", "0.05") == 124
    captured = capsys.readouterr()
    assert "is not over after 0.05 s; it goes on" in captured.err
    assert captured.err.endswith("try:   llumctl requests r-1\n")


async def test_requests_show_whether_they_could_move(bed: Bed, capsys: Captured) -> None:
    bed.source.refusals = {"r-1": "in_prefill"}
    assert await llumctl("requests") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert (header.split()[-1], row.split()[-1]) == ("MOVABLE", "in_prefill")
    bed.source.refusals = {}
    assert await llumctl("requests", "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)["requests"]
    assert (found["movable"], found["why_not_movable"], found["num_moves"]) == (True, None, 0)


@pytest.mark.usefixtures("bed")
async def test_a_request_tells_of_its_moves(capsys: Captured) -> None:
    assert await llumctl("migrate", "r-1", "--to", "i-1", "-m", "make room") == 0
    capsys.readouterr()
    assert await llumctl("requests", "r-1", "-o", "wide") == 0
    shown, *_, history = capsys.readouterr().out.split("\n\n")
    assert facts(shown)["moves"] == "1"
    last = history.splitlines()[-1]
    assert (
        "migrated    i-1/1  from i-0 to i-1: make room, downtime 24ms, excess 4ms, step time 20ms,"
        " 2 stages, 153 tokens, 10 blocks, 2 cached blocks, 4.0 KiB, copy time 12ms"
    ) in last


@pytest.mark.usefixtures("bed")
async def test_the_status_tells_of_moves(capsys: Captured) -> None:
    assert await llumctl("status", "-o", "wide") == 0
    out = capsys.readouterr().out
    assert "  moving 0  " in out
    assert "MIG-IN/OUT" in out
    assert await llumctl("migrate", "r-1") == 0
    capsys.readouterr()
    assert await llumctl("status", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ended_moves"][0]["outcome"] == "migrated"
    assert found["num_migrated_last_minute"] == 1


@pytest.mark.usefixtures("bed")
async def test_an_interrupted_wait_says_that_the_move_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ControlClient, "send", interrupted)
    assert await llumctl("migrate", "r-1", "--to", "i-2") == EXIT_INTERRUPTED
    told = capsys.readouterr().err
    assert "the move goes on, even if it still waits for its turn" in told
    assert "llumctl requests r-1" in told
    assert await llumctl("migrate", "r-1", "--dry-run") == EXIT_INTERRUPTED
    assert "the move" not in capsys.readouterr().err
