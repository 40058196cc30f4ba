"""`llumctl events`: formats, filters, gaps, following over restarts, and Ctrl-C."""

import json

import pytest

from controller.api import client as client_module
from controller.api.state import run_state
from controller.api.wire.requests import Event
from llumctl import output
from llumctl.app import run
from llumctl.commands import events_and_logs
from tests.unit.cli_process import interrupted, llumctl
from tests.unit.cli_support import Cli
from tests.unit.fake_controller import FakeController, event, meanwhile, until

REQUEST = {"request_id": "r-1", "level": "high"}
DISPATCHED = event(
    "dispatched",
    cause_id="arrive-r-1",
    reason="best of 2 by llumnix",
    frontend_id="f-0",
    incarnation=3,
    numbers={"score": 520.5, "num_candidates": 2},
    **REQUEST,
)
EVICTED = event("evicted", reason="memory pressure", numbers={"num_tokens": 70}, **REQUEST)
DIED = event("instance_died", cause_id="lost-i-0-3", reason="its connection closed", incarnation=3)

pytestmark = pytest.mark.usefixtures("utc")


@pytest.fixture(autouse=True)
def _events(fake: FakeController) -> None:
    fake.events = [DISPATCHED, EVICTED, DIED]


def test_tables(cli: Cli) -> None:
    header, day, first, second, third = cli.out("events").splitlines()
    assert header.split() == ["TIME", "KIND", "SUBJECT", "WHAT"]
    assert day == "-- 2023-11-14 --"
    assert first.split("  ")[0] == "22:13:20"
    assert first.endswith("  on i-0, best of 2 by llumnix, score 520.5, 2 candidates")
    assert second.endswith("r-1                 on i-0, memory pressure, 70 tokens")
    assert third.split()[1:] == ["instance_died", "i-0/3", "its", "connection", "closed"]
    wide = cli.out("events", "-o", "wide").splitlines()[2]
    assert wide.split()[:6] == ["22:13:20.250", "dispatched", "r-1", "i-0/3", "high", "arrive-r-1"]


def test_machine_formats(cli: Cli) -> None:
    rows = [json.loads(line) for line in cli.out("events", "-o", "jsonl").splitlines()]
    assert [(row["schema_version"], row["position"]) for row in rows] == [
        (1, f"a-{number}") for number in (1, 2, 3)
    ]
    whole = json.loads(cli.out("events", "-o", "json"))
    assert (whole["schema_version"], whole["next_position"]) == (1, "a-3")
    assert [item["position"] for item in whole["events"]] == ["a-1", "a-2", "a-3"]


def test_filters(cli: Cli) -> None:
    for options, expected in (
        ((), ["a-1", "a-2", "a-3"]),
        (("--kind", "evicted,instance_died"), ["a-2", "a-3"]),
        (("--instance", "i-1"), []),
        (("--request", "r-1", "--kind", "evicted"), ["a-2"]),
        (("--cause", "arrive-r-1"), ["a-1"]),
        (("--after", "a-2"), ["a-3"]),
        (("-n", "2"), ["a-2", "a-3"]),
        (("--since", "2023-11-14T22:13:21"), []),
        (("--since", "5m"), []),
    ):
        captured = cli("events", "-o", "name", *options)
        assert captured.out.split() == expected
        assert captured.err == ("" if expected else "no such events are kept\n")


def test_sums(fake: FakeController, cli: Cli) -> None:
    """Other events stand between them, and end them."""

    def evicted(at_s: float) -> Event:
        about = {"reason": "memory", "request_id": f"r-{at_s}", "time_s": 1_700_000_000 + at_s}
        return event("evicted", **about)

    died = event("instance_died", time_s=1_700_000_011.0)
    fake.events = [*map(evicted, (0.0, 3.0, 6.5, 10.0)), died, evicted(11.5)]
    shown = [line.split(maxsplit=1)[1] for line in cli.out("events", "--sums").splitlines()]
    assert [" ".join(line.split()) for line in shown[-4:]] == [
        "evicted i-0 3 in 7 s, memory",
        "evicted r-10.0 on i-0, memory",
        "instance_died i-0",
        "evicted r-11.5 on i-0, memory",
    ]
    assert "--sums: not with -o jsonl" in cli("events", "--sums", "-o", "jsonl", code=2).err


def test_all_pages_are_read(
    fake: FakeController, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_and_logs, "PAGE", 2)
    fake.events += [EVICTED, EVICTED]
    assert cli.out("events", "-o", "name").splitlines() == [f"a-{n}" for n in range(1, 6)]


def test_gaps_are_said(fake: FakeController, cli: Cli) -> None:
    for after, words in (
        ("a-1", "gap: 2 events are missing here"),
        ("old-9", "gap: the controller restarted"),
    ):
        fake.num_forgotten = 3
        captured = cli("events", "--after", after, "-o", "name")
        assert captured.out.split() == ["a-4", "a-5", "a-6"]
        assert captured.err.startswith(words)


def test_following_neither_repeats_nor_skips_survives_a_restart_and_ends_with_the_cluster(
    fake: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RETRY_S", 0.02)
    seen: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(output, "emit", seen.append)
    monkeypatch.setattr(output, "say", said.append)

    def happen() -> None:
        fake.until_asked("/v1/watch")
        fake.events.append(EVICTED)
        until(lambda: "a-4" in seen)
        fake.stop()
        fake.events += [EVICTED, DIED]
        until(lambda: len(said) == 1)
        fake.start()
        until(lambda: "a-6" in seen)
        fake.stop()
        until(lambda: len(said) == 3)
        fake.restart(DIED)
        until(lambda: "b-1" in seen)
        run_state.remove("default")
        fake.stop()

    with meanwhile(happen):
        assert run(["events", "-f", "-n", "1", "-o", "name"]) == 0
    assert seen == ["a-3", "a-4", "a-5", "a-6", "b-1"]
    trouble, again, more_trouble, again_2, gap, stopped = said
    assert trouble.endswith("; trying again")
    assert more_trouble.endswith("; trying again")
    assert again == again_2 == "the controller answers again"
    assert gap.startswith("gap: the controller restarted")
    assert stopped == "cluster default was stopped"


@pytest.mark.process
def test_following_begins_with_the_last_ones_and_its_filter_holds_for_what_follows(
    fake: FakeController,
) -> None:
    fake.events = [EVICTED] * 30
    with llumctl("events", "-f", "--kind", "evicted", "-o", "name") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(10)] == [f"a-{n}\n" for n in range(21, 31)]
        fake.until_asked("/v1/watch")
        fake.events += [DISPATCHED, EVICTED]
        assert process.stdout.readline() == "a-32\n"
        assert interrupted(process) == (130, "")


def test_control_characters_from_afar_are_harmless(fake: FakeController, cli: Cli) -> None:
    fake.events = [event("failed", reason="a\x1b[2Jb\nc", request_id="r\x07")]
    assert cli.out("events").splitlines()[-1].endswith("r\\x07               on i-0, a\\x1b[2Jb c")
