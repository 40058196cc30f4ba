"""`llumctl lora`: what it orders, follows, prints and exits with; and adapters in `status`."""

from pathlib import Path
from typing import Any

import pytest

from controller.api.operations.on_adapters import AdapterReport
from controller.api.wire.status import AdapterStatus, InstanceStatus
from llumctl.app import run
from llumctl.commands.status_table import render
from tests.unit.cli_support import cluster
from tests.unit.fake_controller import FakeController, meanwhile

Captured = pytest.CaptureFixture[str]
FACTS = {"name": "sql", "path": "/models/sql", "digest": "ab" * 32, "rank": 16, "number": 3}
INSTANCES = tuple(InstanceStatus(id=f"i-{n}", state="active", incarnation=1) for n in range(2))


def adapter(**fields: Any) -> AdapterStatus:
    return AdapterStatus(**(FACTS | fields))


class Bed:
    def __init__(self, fake: FakeController) -> None:
        self.fake = fake
        self.report = AdapterReport(**FACTS, revision=5)
        self.becomes()
        fake.orders = {
            "POST /v1/adapters": lambda _: (200, self.report),
            "POST /v1/adapters/unload": lambda _: (200, self.report),
        }

    def becomes(self, **fields: Any) -> None:
        """What the status says of the adapter from now on."""
        changes = {"instances": INSTANCES, "adapters": (adapter(**fields),)}
        self.fake.status = cluster().model_copy(update=changes)


@pytest.fixture
def bed(fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setattr("llumctl.commands.lora.POLL_S", 0.01)
    return Bed(fake)


def test_a_load_is_followed_until_every_instance_has_it(bed: Bed, capsys: Captured) -> None:
    def happen() -> None:
        for loaded in (("i-0",), ("i-0", "i-1")):
            bed.fake.until_asked_again("/v1/status")
            bed.becomes(loaded_on=loaded)

    with meanwhile(happen):
        assert run(["lora", "load", "sql", "/models/sql", "-m", "new"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["loading on i-0 i-1", "loading on i-1"]
    assert captured.out.splitlines()[-1].split() == [
        *("sql", "16", "abababababab", "i-0", "i-1", "-", "loaded", "/models/sql")
    ]
    (body,) = bed.fake.bodies()
    assert (body["name"], body["path"], body["reason"]) == ("sql", "/models/sql", "new")


def test_an_instance_that_cannot_use_it_is_a_failure(bed: Bed, capsys: Captured) -> None:
    bed.becomes(loaded_on=("i-0",), failed_on={"i-1": "its files are others"})
    assert run(["lora", "load", "sql", "/models/sql"]) == 1
    told = capsys.readouterr().err
    assert "error: i-1 cannot use sql: its files are others\n" in told
    assert (
        "try:   llumctl lora unload sql      or, to try again,      llumctl restart i-1\n" in told
    )


def test_a_path_is_absolute_and_a_dry_run_or_a_detached_load_is_not_followed(
    bed: Bed, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["lora", "load", "sql", "models/sql", "--dry-run"]) == 10
    assert run(["lora", "load", "sql", "models/sql", "--detach"]) == 0
    told = "sql (rank 16, abababababab) of /models/sql"
    assert capsys.readouterr().err.splitlines() == [
        f"would load {told}",
        f"all instances load {told}",
    ]
    assert [body["path"] for body in bed.fake.bodies()] == [f"{tmp_path}/models/sql"] * 2


def test_an_unload_says_where_its_requests_go_on(bed: Bed, capsys: Captured) -> None:
    bed.report = bed.report.model_copy(update={"in_use_on": ("i-0", "i-1")})
    assert run(["lora", "unload", "sql"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "sql (rank 16, abababababab) of /models/sql is offered no more;"
        " requests that wait for an instance are refused",
        "its requests on i-0, i-1 go on; it is unloaded there when they have ended",
    ]


def test_adapters_are_listed_and_named_in_the_status(bed: Bed, capsys: Captured) -> None:
    bed.becomes(loaded_on=("i-0",), in_use_on=("i-0",))
    assert run(["lora", "list"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[3:] == ["i-0", "i-0", "loading", "on", "i-1", "/models/sql"]
    assert run(["lora", "list", "-o", "name"]) == 0
    assert capsys.readouterr().out == "sql\n"
    found = (adapter(), adapter(name="b", failed_on={"i-1": "no"}))
    failed = cluster().model_copy(update={"adapters": found})
    assert "LoRA adapters: sql, b (failed on i-1)" in render(failed, wide=False)
    assert "LoRA" not in render(cluster(), wide=False)
