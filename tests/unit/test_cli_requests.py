"""`llumctl requests`: the list and its order, one request with its history, what is missing."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controller.api.wire.requests import RequestDetail, RequestList, RequestState, RequestStatus
from controller.api.wire.status import HeldPlaceStatus
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController, event

Captured = pytest.CaptureFixture[str]
ARRIVAL_S = 1_700_000_000.0


def fields(id_: str, state: RequestState = RequestState.RUNNING, **changed: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": id_,
        "client_id": f"cmpl-{id_}",
        "state": state,
        "level": "normal",
        "frontend_id": "f-0",
        "instance_id": "i-0",
        "arrival_time_s": ARRIVAL_S,
        "age_s": 12.5,
        "ttft_s": 0.034,
        "num_prompt_tokens": 120,
        "num_output_tokens": 33,
        "num_evictions": 1,
    }
    return known | changed


def request(id_: str, state: RequestState = RequestState.RUNNING, **changed: Any) -> RequestStatus:
    return RequestStatus(**fields(id_, state, **changed))


HISTORY = (
    event("dispatched", time_s=ARRIVAL_S + 0.002, incarnation=1, request_id="r-1", reason="best"),
    event("admitted", time_s=ARRIVAL_S + 0.3, incarnation=1, request_id="r-1"),
    event(
        "evicted",
        time_s=ARRIVAL_S + 71,
        incarnation=1,
        request_id="r-1",
        reason="memory pressure",
        numbers={"num_tokens": 153},
    ),
)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def fake() -> Iterator[FakeController]:
    with FakeController() as served:
        remember(served.url)
        listed = (
            request("r-5", arrival_time_s=ARRIVAL_S - 1),
            request("r-1"),
            request("r-6", RequestState.EVICTED),
            request("r-2", RequestState.WAITING, ttft_s=None, instance_id=None),
            request("r-4", RequestState.ABORTED, age_s=9.0),
            request("r-3", RequestState.FINISHED, age_s=3.0, finish_reason="stop"),
        )
        served.requests = RequestList(requests=listed, num_matching=6)
        served.details["r-1"] = RequestDetail(**fields("r-1"), history=HISTORY)
        yield served


def told(capsys: Captured, *options: str) -> list[str]:
    assert run(["requests", *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out.splitlines()


@pytest.mark.usefixtures("fake")
def test_a_row_each_in_the_order_of_the_controller(capsys: Captured) -> None:
    header, *rows = told(capsys)
    assert [row.split()[0] for row in rows] == ["r-5", "r-1", "r-6", "r-2", "r-4", "r-3"]
    first = dict(zip(header.split(), rows[1].split(), strict=True))
    assert first == {
        "ID": "r-1",
        "CLIENT-ID": "cmpl-r-1",
        "STATE": "running",
        "LEVEL": "normal",
        "INSTANCE": "i-0",
        "AGE": "12s",
        "TTFT": "34ms",
        "TOK-IN": "120",
        "TOK-OUT": "33",
        "EVICT": "1",
        "MOVABLE": "-",
    }
    waiting = dict(zip(header.split(), rows[3].split(), strict=True))
    assert (waiting["INSTANCE"], waiting["TTFT"]) == ("-", "-")


@pytest.mark.usefixtures("fake")
def test_wide(capsys: Captured) -> None:
    header, *rows = told(capsys, "-o", "wide")
    last = dict(zip(header.split(), rows[-1].split(), strict=True))
    assert last["FRONTEND"] == "f-0"
    assert last["ARRIVED"] == "22:13:20.000"
    assert (last["PARENT"], last["END"]) == ("-", "stop")


@pytest.mark.usefixtures("fake")
def test_machine_formats(capsys: Captured) -> None:
    ids = ["r-5", "r-1", "r-6", "r-2", "r-4", "r-3"]
    assert told(capsys, "-o", "name") == ids
    rows = [json.loads(line) for line in told(capsys, "-o", "jsonl")]
    assert [(row["id"], row["schema_version"]) for row in rows] == [(id_, 1) for id_ in ids]
    whole = json.loads("\n".join(told(capsys, "-o", "json")))
    assert (whole["schema_version"], whole["num_matching"]) == (1, 6)
    assert [row["id"] for row in whole["requests"]] == ids
    assert "num_matching: 6" in told(capsys, "-o", "yaml")


def test_filters_go_to_the_controller(fake: FakeController, capsys: Captured) -> None:
    told(capsys, "--instance", "i-0", "--state", "running, evicted", "-n", "7")
    asked = "/v1/requests?limit=7&state=running&state=evicted&movable=true&instance=i-0"
    assert fake.asked[-1] == asked


def test_no_requests_are_no_rows(fake: FakeController, capsys: Captured) -> None:
    fake.requests = RequestList(requests=(), num_matching=0)
    assert len(told(capsys)) == 1
    assert told(capsys, "-o", "name") == []
    assert told(capsys, "-o", "jsonl") == []


def test_what_is_missing_is_said(fake: FakeController, capsys: Captured) -> None:
    fake.requests = fake.requests.model_copy(
        update={"num_matching": 250, "silent_frontends": ("f-1", "f-2")}
    )
    assert run(["requests", "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["silent_frontends"] == ["f-1", "f-2"]
    assert captured.err.splitlines() == [
        "frontend f-1 did not answer: its requests are missing",
        "frontend f-2 did not answer: its requests are missing",
        "6 of 250 requests; more: --limit 250",
    ]


@pytest.mark.usefixtures("fake")
def test_one_request_with_its_history(capsys: Captured) -> None:
    lines = told(capsys, "r-1", "-o", "wide")
    facts = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    assert facts["id"] == "r-1"
    assert facts["state"] == "running"
    assert facts["tok-out"] == "33"
    assert facts["parent"] == "-"
    header, *events = lines[len(lines) - lines[::-1].index("") :]
    assert header.split() == ["SINCE", "WHAT", "WHERE", "WHY"]
    assert [row.split()[:3] for row in events] == [
        ["+2ms", "dispatched", "i-0/1"],
        ["+300ms", "admitted", "i-0/1"],
        ["+1m11s", "evicted", "i-0/1"],
    ]
    assert events[2].endswith("memory pressure, 153 tokens")


@pytest.mark.usefixtures("fake")
def test_one_request_for_machines(capsys: Captured) -> None:
    whole = json.loads("\n".join(told(capsys, "r-1", "-o", "json")))
    assert whole["schema_version"] == 1
    assert [item["kind"] for item in whole["history"]] == ["dispatched", "admitted", "evicted"]
    (line,) = told(capsys, "r-1", "-o", "jsonl")
    assert json.loads(line) == whole
    assert told(capsys, "r-1", "-o", "name") == ["r-1"]


@pytest.mark.usefixtures("fake")
def test_an_unknown_request(capsys: Captured) -> None:
    assert run(["requests", "r/9?"]) == 4
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: there is no request r/9?\ntry:   llumctl requests\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-n", "0"), "--limit: must be between 1 and 10000, not 0"),
        (("-n", "10001"), "--limit: must be between 1 and 10000, not 10001"),
        (("-n", "x"), "Invalid value for '-n' / '--limit'"),
        (("--state", "runing"), "--state: 'runing' is not a state of a request; did you mean run"),
        (("--state", "running,,"), "--state: '' is not a state of a request"),
        (("r-1", "--state", "running"), "--state: only for the list, not for one request"),
        (("r-1", "-n", "5"), "--limit: only for the list"),
        (("r-1", "--instance", "i-0"), "--instance: only for the list"),
        (("-o", "xml"), "Invalid value for '-o' / '--output'"),
    ],
)
def test_usage_errors(options: tuple[str, ...], message: str, capsys: Captured) -> None:
    assert run(["requests", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")


def test_nothing_runs(capsys: Captured) -> None:
    assert run(["requests"]) == 3
    assert capsys.readouterr().err == "error: cluster default is not running\ntry:   llumctl up\n"


def test_bad_token(fake: FakeController, capsys: Captured) -> None:
    remember(fake.url, token="wrong")
    assert run(["requests"]) == 5
    assert capsys.readouterr().err == "error: bad token\ntry:   look\n"


def test_what_the_controller_holds_has_its_place_there(
    fake: FakeController, capsys: Captured
) -> None:
    held = HeldPlaceStatus(
        place=3, why="kept", demand_blocks=688, instance_id="i-3", lacking_blocks=198
    )
    waiting = request("r-7", RequestState.WAITING, ttft_s=None, instance_id=None, held=held)
    fake.requests = RequestList(requests=(request("r-1"), waiting), num_matching=2)
    header, runs, waits = told(capsys)
    row = dict(zip(header.split(), waits.split(), strict=True))
    assert (row["STATE"], row["INSTANCE"], row["PLACE"]) == ("waiting", "controller", "3")
    assert (row["NEEDS"], row["KEPT"], row["WHY"]) == ("688", "i-3", "kept")
    assert runs.split()[-4:] == ["-"] * 4
    fake.details["r-7"] = RequestDetail(**dict(waiting))
    facts = [line.split() for line in told(capsys, "r-7")]
    assert ["place", "3"] in facts
    assert ["needs", "688"] in facts
