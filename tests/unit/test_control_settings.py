"""Settings that may be changed while the cluster runs, on the control API."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from control_support import AUTHORIZED, VIEW_TOKEN, Listener, listening

from controller.adapters.http.live_settings import TABLES
from controller.api.models import EventPage, SettingChanges, SettingList
from controller.api.settings import Settings
from controller.core.migration.limits import MoveLimits
from controller.runtime.move_messages import MoveLimitsSet

Both = tuple[Listener, httpx.AsyncClient]
PATH = "/v1/settings"


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    async with listening(2) as pair:
        yield pair


async def patched(both: Both, *, dry_run: bool = False, **changes: Any) -> SettingChanges:
    body = {"changes": {f"migration.{key}": value for key, value in changes.items()}}
    answer = await both[1].patch(PATH, headers=AUTHORIZED, json=body | {"dry_run": dry_run})
    assert answer.status_code == 200, answer.text
    return SettingChanges.model_validate_json(answer.content)


async def values(both: Both, token: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else AUTHORIZED
    answer = await both[1].get(PATH, headers=headers)
    found = SettingList.model_validate_json(answer.content).settings
    assert all(setting.meaning for setting in found)
    return {setting.key: setting.value for setting in found}


def told(both: Both, instance_id: str) -> list[MoveLimitsSet]:
    return both[0].cluster.mailbox.sent_to(f"mem://{instance_id}", MoveLimitsSet)


def test_the_tables_are_those_of_the_configuration() -> None:
    for name, table in TABLES.items():
        assert isinstance(getattr(Settings(), name), table)


def test_the_defaults_are_those_of_the_controller() -> None:
    table = Settings().migration
    assert MoveLimits(table.max_moves, table.max_bytes_per_s or None, table.cooling_s) == (
        MoveLimits()
    )


async def test_they_are_listed_for_who_may_look(both: Both) -> None:
    expected = {
        "migration.max_moves": 4,
        "migration.max_bytes_per_s": 0.0,
        "migration.cooling_s": 30.0,
    }
    assert await values(both) == await values(both, VIEW_TOKEN) == expected


async def test_a_change_reaches_every_instance_and_names_the_value_before(both: Both) -> None:
    found = await patched(both, max_moves=2, max_bytes_per_s=5_000_000)
    assert [(each.key, each.previous, each.value) for each in found.changes] == [
        ("migration.max_moves", 4, 2),
        ("migration.max_bytes_per_s", 0.0, 5e6),
    ]
    for instance_id in ("i-0", "i-1"):
        assert told(both, instance_id) == [MoveLimitsSet(4, None), MoveLimitsSet(2, 5e6)]
    assert (await values(both))["migration.max_bytes_per_s"] == 5e6
    await patched(both, max_bytes_per_s=0)
    assert told(both, "i-0")[-1] == MoveLimitsSet(2, None)
    await patched(both, cooling_s=1.5)
    assert both[0].cluster.controller.mover.cooling.cooling_s == 1.5


async def test_an_instance_that_comes_later_is_told_too(both: Both) -> None:
    cluster = both[0].cluster
    await patched(both, max_moves=7)
    cluster.mailbox.lose("mem://i-1")
    cluster.hello("i-1", nonce="b")
    assert told(both, "i-1")[-1] == MoveLimitsSet(7, None)


async def test_a_dry_run_changes_nothing(both: Both) -> None:
    found = await patched(both, dry_run=True, max_moves=2)
    assert (found.dry_run, len(found.changes)) == (True, 1)
    assert (await values(both))["migration.max_moves"] == 4
    assert len(told(both, "i-0")) == 1
    assert not both[0].audit.path.exists()


async def test_what_is_so_already_is_no_change(both: Both) -> None:
    assert (await patched(both, max_moves=4, cooling_s=30)).changes == ()
    assert not both[0].audit.path.exists()


async def test_who_changed_what_is_recorded(both: Both) -> None:
    await patched(both, max_moves=2)
    (entry,) = [json.loads(line) for line in both[0].audit.path.read_text().splitlines()]
    assert entry["action"] == "set migration.max_moves = 2, was 4"
    assert (entry["target"], entry["outcome"]) == ("migration.max_moves", "done")
    answer = await both[1].get("/v1/events", headers=AUTHORIZED)
    last = EventPage.model_validate_json(answer.content).events[-1]
    assert (last.kind, last.reason) == ("operator", "set migration.max_moves = 2, was 4 (done)")


async def test_what_cannot_be_recorded_is_not_changed(both: Both) -> None:
    both[0].audit.path = both[0].audit.path / "no folder"
    body = {"changes": {"migration.max_moves": 2}}
    answer = await both[1].patch(PATH, headers=AUTHORIZED, json=body)
    assert (answer.status_code, answer.json()["code"]) == (500, "not_audited")
    assert (await values(both))["migration.max_moves"] == 4
