"""Settings that may be changed while the cluster runs, on the control API."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SettingChanges, SettingList
from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from controller.api.wire.requests import EventPage
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import FrontendLimits, StatusPushSet
from controller.runtime.messages.move_messages import MoveLimitsSet
from controller.runtime.messages.requests import DispatchAsked, Dispatched
from tests.unit.control_support import AUTHORIZED, VIEW_TOKEN, Listener, listening

Both = tuple[Listener, httpx.AsyncClient]
PATH = "/v1/settings"


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    async with listening(2) as pair:
        yield pair


async def patch(both: Both, changes: dict[str, Any], **how: Any) -> httpx.Response:
    return await both[1].patch(PATH, headers=AUTHORIZED, json={"changes": changes} | how)


async def patched(both: Both, changes: dict[str, Any], **how: Any) -> SettingChanges:
    answer = await patch(both, changes, **how)
    assert answer.status_code == 200, answer.text
    return SettingChanges.model_validate_json(answer.content)


async def refused(both: Both, changes: dict[str, Any], **how: Any) -> tuple[int, str, str]:
    answer = await patch(both, changes, **how)
    body = answer.json()
    return answer.status_code, body["code"], body["message"]


async def listed(both: Both, token: str = "") -> SettingList:
    headers = {"Authorization": f"Bearer {token}"} if token else AUTHORIZED
    answer = await both[1].get(PATH, headers=headers)
    return SettingList.model_validate_json(answer.content)


async def values(both: Both, token: str = "") -> dict[str, Any]:
    return {setting.key: setting.value for setting in (await listed(both, token)).settings}


def told(both: Both, member_id: str, kind: Any = MoveLimitsSet) -> list[Any]:
    return both[0].cluster.mailbox.sent_to(f"mem://{member_id}", kind)


def audited(both: Both) -> list[dict[str, Any]]:
    path = both[0].audit.path
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_they_are_listed_for_who_may_look(both: Both) -> None:
    found = await listed(both)
    assert found.revision == 0
    assert found == await listed(both, VIEW_TOKEN)
    assert {each.key: each.value for each in found.settings} == {
        key: each.value for key, each in live_settings(Settings()).items()
    }


async def test_a_change_reaches_every_instance_and_names_the_value_before(both: Both) -> None:
    found = await patched(both, {"migration.max_moves": 2, "migration.max_bytes_per_s": 5_000_000})
    assert [(each.key, each.previous, each.value) for each in found.changes] == [
        ("migration.max_moves", 4, 2),
        ("migration.max_bytes_per_s", 0.0, 5e6),
    ]
    assert found.revision == (await listed(both)).revision == 1
    for instance_id in ("i-0", "i-1"):
        assert told(both, instance_id) == [MoveLimitsSet(4, None), MoveLimitsSet(2, 5e6)]
    assert (await values(both))["migration.max_bytes_per_s"] == 5e6
    await patched(both, {"migration.max_bytes_per_s": 0})
    assert told(both, "i-0")[-1] == MoveLimitsSet(2, None)


async def test_each_reaches_whom_it_concerns(both: Both) -> None:
    controller = both[0].cluster.controller
    await patched(both, {"migration.max_moves": 3, "migration.max_moves_per_minute": 7})
    assert controller.operator_moves.machine.max_moves == 3
    assert controller.rescheduler.config.max_moves_per_minute == 7
    await patched(both, {"scheduler.status_interval_s": 0.5, "scheduler.policy": "round-robin"})
    assert told(both, "i-1", StatusPushSet)[-1] == StatusPushSet(0.5)
    assert both[0].cluster.view().policy == "round-robin"
    num_told = len(told(both, "f-0", FrontendLimits))
    await patched(both, {"endpoint.max_live_requests": 9, "endpoint.request_timeout_s": 3})
    assert told(both, "f-0", FrontendLimits)[-1] == FrontendLimits(9, 3.0, 60.0)
    await patched(both, {"endpoint.request_timeout_s": None})
    assert told(both, "f-0", FrontendLimits)[-1] == FrontendLimits(9, None, 60.0)
    await patched(both, {"priority.high.target_load_tokens": 320})
    high = next(level for level in both[0].cluster.view().levels if level.name == "high")
    assert high.target_load_tokens == 320
    assert [level.target_load_tokens for level in controller.rescheduler.levels] == [None, 320]
    await patched(both, {"control.max_events": 2})
    answer = await both[1].get("/v1/events", headers=AUTHORIZED)
    assert len(EventPage.model_validate_json(answer.content).events) == 2
    assert (
        len(told(both, "f-0", FrontendLimits)) == num_told + 2
    )  # what is as it was is not said again


async def test_one_that_comes_later_is_told_too(both: Both) -> None:
    cluster = both[0].cluster
    await patched(both, {"migration.max_moves": 7, "endpoint.write_timeout_s": 2})
    for member_id in ("i-1", "f-0"):
        cluster.mailbox.lose(f"mem://{member_id}")
        cluster.hello(member_id, nonce="b")
    assert told(both, "i-1")[-1] == MoveLimitsSet(7, None)
    assert told(both, "f-0", FrontendLimits)[-1].write_timeout_s == 2.0


async def test_a_dry_run_changes_nothing(both: Both) -> None:
    found = await patched(both, {"migration.max_moves": 2}, dry_run=True)
    assert (found.dry_run, len(found.changes), found.revision) == (True, 1, 0)
    assert (await values(both))["migration.max_moves"] == 4
    assert len(told(both, "i-0")) == 1
    assert audited(both) == []


async def test_it_says_where_a_value_is_from_and_what_it_may_be(both: Both) -> None:
    before = {each.key: each for each in (await listed(both)).settings}
    assert {each.origin for each in before.values()} == {"default"}
    assert before["scheduler.policy"].allowed.startswith("llumnix, ")
    assert before["migration.max_moves"].allowed == "0 to 1024"
    await patched(both, {"migration.max_moves": 2})
    after = {each.key: each.origin for each in (await listed(both)).settings}
    assert [key for key, origin in after.items() if origin == "set"] == ["migration.max_moves"]


async def test_what_a_controller_was_started_with_is_told_from_what_was_set() -> None:
    settings = Settings.model_validate({"migration": {"max_moves": 7, "max_bytes_per_s": 3.0}})
    async with listening(1, settings=settings) as found:
        await patched(found, {"migration.max_bytes_per_s": 4})
        origins = {each.key: each.origin for each in (await listed(found)).settings}
        assert origins["migration.max_moves"] == "start"
        assert origins["migration.max_bytes_per_s"] == "set"


async def test_a_dry_run_says_who_would_be_relieved_and_who_would_take(both: Both) -> None:
    """According to the present statuses: i-0 has 50 free blocks for 10 requests, which is 80
    steps."""
    both[0].cluster.report("i-0", num_free_blocks=50, num_running=10)
    both[0].cluster.report("i-1", num_free_blocks=99, num_running=1)
    thresholds = {
        "migration.source_below_steps": 100,
        "migration.destination_above_steps": 2000,
    }
    found = await patched(both, thresholds, dry_run=True)
    assert [(each.instance_id, each.freeness_steps) for each in found.roles] == [
        ("i-0", 80.0),
        ("i-1", 1584.0),
    ]
    assert [(each.now, each.then) for each in found.roles] == [
        ("destination", "source"),
        ("destination", "neither"),
    ]
    off = await patched(both, thresholds | {"migration.enabled": False}, dry_run=True)
    assert [each.then for each in off.roles] == ["neither", "neither"]
    other = await patched(both, {"migration.max_moves_per_minute": 1}, dry_run=True)
    assert (len(other.changes), other.roles) == (1, ())
    assert (await patched(both, thresholds)).roles == ()


async def test_what_is_so_already_is_no_change(both: Both) -> None:
    found = await patched(both, {"migration.max_moves": 4, "migration.max_bytes_per_s": 0})
    assert (found.changes, found.revision) == ((), 0)
    assert audited(both) == []


async def test_all_or_none(both: Both) -> None:
    status, code, message = await refused(
        both, {"migration.max_moves": 2, "scheduler.policy": "best"}
    )
    assert (status, code) == (400, "bad_setting")
    assert message.startswith("scheduler.policy: unknown dispatch policy 'best'")
    status, code, message = await refused(
        both, {"migration.max_moves": 2, "cluster.model": "other"}
    )
    assert (status, code) == (400, "bad_setting")
    assert message == "cluster.model cannot be changed while the cluster runs: it takes a restart"
    assert (await values(both))["migration.max_moves"] == 4
    assert (await listed(both)).revision == 0
    assert audited(both) == []


async def test_who_looked_at_an_older_revision_changes_nothing(both: Both) -> None:
    await patched(both, {"migration.max_moves": 2}, if_revision=0)
    status, code, message = await refused(both, {"migration.max_moves": 3}, if_revision=0)
    assert (status, code) == (409, "revision_conflict")
    assert "revision 0 was looked at, and 1 is the present one" in message
    assert (await patched(both, {"migration.max_moves": 3}, if_revision=1)).revision == 2
    again = await patched(both, {"migration.max_moves": 3}, if_revision=1)
    assert (again.changes, again.revision) == ((), 2), "its own answer may have got lost"
    keeper = both[0].cluster.controller.keeper
    keeper.change(keeper.spec.with_instances_added(1))
    assert (await refused(both, {"migration.max_moves": 4}, if_revision=2))[0] == 409
    assert len(audited(both)) == 4


async def test_of_two_at_once_with_one_revision_one_is_told(both: Both) -> None:
    answers = await asyncio.gather(
        *(patch(both, {"migration.max_moves": n}, if_revision=0) for n in (5, 6, 7))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    assert both[0].cluster.controller.keeper.spec.revision == 1


async def test_who_changed_what_and_why_is_recorded(both: Both) -> None:
    changes = {"migration.max_moves": 2, "endpoint.request_timeout_s": 90}
    await patched(both, changes, reason="night shift")
    entries = audited(both)
    assert [(each["action"], each["target"], each["outcome"]) for each in entries] == [
        ("set endpoint.request_timeout_s = 90, was none", "endpoint.request_timeout_s", "begun"),
        ("set migration.max_moves = 2, was 4", "migration.max_moves", "begun"),
        ("set endpoint.request_timeout_s = 90, was none", "endpoint.request_timeout_s", "done"),
        ("set migration.max_moves = 2, was 4", "migration.max_moves", "done"),
    ]
    assert {each["reason"] for each in entries} == {"night shift"}
    assert len({each["cause_id"] for each in entries}) == 1
    answer = await both[1].get("/v1/events", headers=AUTHORIZED)
    last = EventPage.model_validate_json(answer.content).events[-1]
    assert (last.kind, last.reason) == (
        "operator",
        "set migration.max_moves = 2, was 4 (done): night shift",
    )


async def test_what_cannot_be_recorded_is_not_changed(both: Both) -> None:
    both[0].audit.path = both[0].audit.path / "no folder"
    assert (await refused(both, {"migration.max_moves": 2}))[:2] == (500, "not_audited")
    assert (await values(both))["migration.max_moves"] == 4


async def test_what_cannot_be_kept_is_not_changed_and_recorded_as_failed(both: Both) -> None:
    class FullDisk:
        def load(self) -> ClusterSpec | None:
            return None

        def save(self, _spec: ClusterSpec) -> None:
            raise LlumctlError("cannot write spec.json: No space left on device", "llumctl doctor")

    both[0].cluster.controller.keeper._store = FullDisk()
    status, code, message = await refused(both, {"migration.max_moves": 2})
    assert (status, code) == (500, "failed")
    assert message == "cannot write spec.json: No space left on device; nothing was done"
    assert (await values(both))["migration.max_moves"] == 4
    assert len(told(both, "i-0")) == 1
    assert [each["outcome"].partition(":")[0] for each in audited(both)] == ["begun", "failed"]


async def test_an_outcome_that_cannot_be_recorded_any_more_is_no_failure(both: Both) -> None:
    audit = both[0].audit
    write_all = audit.write_all

    def fills_up(*what: Any, outcome: str, **more: Any) -> None:
        if outcome != "begun":
            raise LlumctlError("cannot write the audit log")
        write_all(*what, outcome=outcome, **more)

    audit.write_all = fills_up
    assert (await patched(both, {"migration.max_moves": 2})).revision == 1
    assert (await values(both))["migration.max_moves"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"changes": {}},
        {"changes": {"a": [1]}},
        {"changes": {"a": 1}, "later": 1},
        {"changes": {"a": 1}, "if_revision": -1},
        {"changes": {"a": 1}, "reason": "x" * 201},
        {"changes": {f"a.{n}": 1 for n in range(101)}},
    ],
)
async def test_a_body_of_another_form(both: Both, body: dict[str, Any]) -> None:
    answer = await both[1].patch(PATH, headers=AUTHORIZED, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


async def test_requests_are_dispatched_on_while_settings_change(both: Both) -> None:
    """400 requests, and at every tenth a change of each setting that dispatch uses."""
    cluster = both[0].cluster
    policies = ("llumnix", "round-robin", "vllm-dp", "infaas++", "prefix-aware")
    for number in range(400):
        if number % 10 == 0:
            changes = {
                "scheduler.policy": policies[number // 10 % len(policies)],
                "scheduler.max_held_reqs": number,
                "scheduler.stall_timeout_s": 5.0 + number,
                "priority.high.target_load_tokens": 16 * number,
            }
            await patched(both, changes)
        ask = DispatchAsked(DispatchRequested(f"r-{number}", "f-0", 160, number % 2, float(number)))
        cluster.mailbox.say(encode(ask), [])
        if number % 7 == 0:
            cluster.report("i-0", num_free_blocks=100 - number % 50)
        cluster.controller.scheduler.check()
    sent = cluster.mailbox.sent_to("mem://f-0", Dispatched)
    assert [each.dispatch.request_id for each in sent] == [f"r-{number}" for number in range(400)]
    assert {each.dispatch.instance_id for each in sent} == {"i-0", "i-1"}
