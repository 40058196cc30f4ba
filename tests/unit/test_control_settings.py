"""Settings that may be changed while the cluster runs, on the control API."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import SetSettings, SettingChanges, SettingList
from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import FrontendLimits, StatusPushSet
from controller.runtime.messages.move_messages import MoveLimitsSet
from controller.runtime.messages.requests import DispatchAsked, Dispatched
from tests.unit.control_bed import VIEWER, Bed, bed_of


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of(2) as found:
        yield found


async def sets(bed: Bed, changes: dict[str, Any], **how: Any) -> SettingChanges:
    return await bed.does(SetSettings, changes=changes, **how)


async def listed(bed: Bed) -> SettingList:
    return await bed.get("settings", SettingList)


def told(bed: Bed, member_id: str, kind: Any = MoveLimitsSet) -> list[Any]:
    return bed.mailbox.sent_to(f"mem://{member_id}", kind)


async def test_settings_are_listed_with_their_origin_and_bounds(bed: Bed) -> None:
    found = await listed(bed)
    assert found.revision == 0
    seen = await bed.client.get("/v1/settings", headers=VIEWER)
    assert SettingList.model_validate_json(seen.content) == found
    before = {each.key: each for each in found.settings}
    known = live_settings(Settings())
    assert {key: each.value for key, each in before.items()} == {
        key: each.value for key, each in known.items()
    }
    assert {each.origin for each in before.values()} == {"default"}
    assert before["scheduler.policy"].allowed.startswith("llumnix, ")
    assert before["migration.max_moves"].allowed == "0 to 1024"
    started = Settings.model_validate({"migration": {"max_moves": 7, "max_bytes_per_s": 3.0}})
    async with bed_of(1, settings=started) as other:
        await sets(other, {"migration.max_bytes_per_s": 4})
        origins = {each.key: each.origin for each in (await listed(other)).settings}
    assert origins["migration.max_moves"] == "start"
    assert origins["migration.max_bytes_per_s"] == "set"


async def test_a_change_reaches_every_instance_and_names_the_value_before(bed: Bed) -> None:
    found = await sets(bed, {"migration.max_moves": 2, "migration.max_bytes_per_s": 5_000_000})
    assert [(each.key, each.previous, each.value) for each in found.changes] == [
        ("migration.max_moves", 4, 2),
        ("migration.max_bytes_per_s", 0.0, 5e6),
    ]
    assert found.revision == (await listed(bed)).revision == 1
    for instance_id in ("i-0", "i-1"):
        assert told(bed, instance_id) == [MoveLimitsSet(4, None), MoveLimitsSet(2, 5e6)]
    await sets(bed, {"migration.max_bytes_per_s": 0})
    assert told(bed, "i-0")[-1] == MoveLimitsSet(2, None)


async def test_each_setting_reaches_whom_it_concerns(bed: Bed) -> None:
    controller = bed.controller
    await sets(bed, {"migration.max_moves": 3, "migration.max_moves_per_minute": 7})
    assert controller.operator_moves.machine.max_moves == 3
    assert controller.rescheduler.config.max_moves_per_minute == 7
    await sets(bed, {"scheduler.status_interval_s": 0.5, "scheduler.policy": "round-robin"})
    assert told(bed, "i-1", StatusPushSet)[-1] == StatusPushSet(0.5)
    num_told = len(told(bed, "f-0", FrontendLimits))
    await sets(bed, {"endpoint.max_live_requests": 9, "endpoint.request_timeout_s": 3})
    assert told(bed, "f-0", FrontendLimits)[-1] == FrontendLimits(9, 3.0, 60.0)
    await sets(bed, {"endpoint.request_timeout_s": None})
    assert told(bed, "f-0", FrontendLimits)[-1] == FrontendLimits(9, None, 60.0)
    await sets(bed, {"priority.high.target_load_tokens": 320})
    status = await bed.status()
    assert status.policy == "round-robin"
    assert [level.target_load_tokens for level in status.levels] == [None, 320]
    assert [level.target_load_tokens for level in controller.rescheduler.levels] == [None, 320]
    await sets(bed, {"control.max_events": 2})
    assert len(await bed.events()) == 2
    assert len(told(bed, "f-0", FrontendLimits)) == num_told + 2, "only what changed is said"


async def test_a_member_that_comes_later_is_told_too(bed: Bed) -> None:
    await sets(bed, {"migration.max_moves": 7, "endpoint.write_timeout_s": 2})
    for member_id in ("i-1", "f-0"):
        bed.mailbox.lose(f"mem://{member_id}")
        bed.cluster.hello(member_id, nonce="b")
    assert told(bed, "i-1")[-1] == MoveLimitsSet(7, None)
    assert told(bed, "f-0", FrontendLimits)[-1].write_timeout_s == 2.0


async def test_a_dry_run_says_which_instances_would_send_and_take_requests(bed: Bed) -> None:
    """According to the present statuses: i-0 has 50 free blocks for 10 requests, which is 80
    steps."""
    bed.cluster.report("i-0", num_free_blocks=50, num_running=10)
    bed.cluster.report("i-1", num_free_blocks=99, num_running=1)
    thresholds = {
        "migration.source_below_steps": 100,
        "migration.destination_above_steps": 2000,
    }
    found = await sets(bed, thresholds, dry_run=True)
    assert [(each.instance_id, each.freeness_steps) for each in found.roles] == [
        ("i-0", 80.0),
        ("i-1", 1584.0),
    ]
    assert [(each.now, each.then) for each in found.roles] == [
        ("destination", "source"),
        ("destination", "neither"),
    ]
    off = await sets(bed, thresholds | {"migration.enabled": False}, dry_run=True)
    assert [each.then for each in off.roles] == ["neither", "neither"]
    assert (await sets(bed, {"migration.max_moves_per_minute": 1}, dry_run=True)).roles == ()
    assert (await sets(bed, thresholds)).roles == ()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scheduler.policy", "best", "scheduler.policy: unknown dispatch policy 'best'"),
        ("cluster.model", "x", "cluster.model cannot be changed while the cluster runs"),
        ("migration.max_bytes_per_s", float("inf"), "migration.max_bytes_per_s must be a finite"),
    ],
)
async def test_all_settings_of_an_order_change_or_none(
    bed: Bed, key: str, value: Any, message: str
) -> None:
    refusal = await bed.refusal(SetSettings, changes={"migration.max_moves": 2, key: value})
    assert refusal[:2] == (400, "bad_setting")
    assert refusal[2].startswith(message)
    assert (bed.controller.live.rescheduling.max_moves, bed.revision) == (4, 0)
    assert bed.audited() == []


async def test_an_order_whose_answer_was_lost_may_come_again_at_its_revision(bed: Bed) -> None:
    await sets(bed, {"migration.max_moves": 2}, if_revision=0)
    again = await sets(bed, {"migration.max_moves": 2}, if_revision=0)
    assert (again.changes, again.revision) == ((), 1)
    conflict = await bed.gives(SetSettings, changes={"migration.max_moves": 3}, if_revision=0)
    assert (conflict.status_code, conflict.json()["hint"]) == (409, "llumctl set")
    assert "revision 0 was looked at, and 1 is the present one" in conflict.json()["message"]


async def test_each_setting_of_an_order_is_recorded(bed: Bed) -> None:
    await sets(bed, {"migration.max_moves": 2, "endpoint.request_timeout_s": 90}, reason="night")
    one = ("set endpoint.request_timeout_s = 90, was none", "endpoint.request_timeout_s")
    two = ("set migration.max_moves = 2, was 4", "migration.max_moves")
    entries = bed.audited()
    assert [(each["action"], each["target"], each["outcome"]) for each in entries] == [
        (*one, "begun"),
        (*two, "begun"),
        (*one, "done"),
        (*two, "done"),
    ]
    assert len({each["cause_id"] for each in entries}) == 1
    assert sorted((await bed.done())[0].actions) == [one[0], two[0]]


async def test_an_outcome_that_cannot_be_recorded_any_more_is_no_failure(bed: Bed) -> None:
    write_all = bed.listener.audit.write_all

    def fills_up(*what: Any, outcome: str, **more: Any) -> None:
        if outcome != "begun":
            raise LlumctlError("cannot write the audit log")
        write_all(*what, outcome=outcome, **more)

    bed.listener.audit.write_all = fills_up
    assert (await sets(bed, {"migration.max_moves": 2})).revision == 1
    assert bed.controller.live.rescheduling.max_moves == 2
    assert (await bed.done())[0].why_not == "it is not over"


async def test_requests_are_dispatched_on_while_settings_change(bed: Bed) -> None:
    """At every tenth request each setting changes that dispatch uses."""
    policies = ("llumnix", "round-robin", "vllm-dp", "infaas++", "prefix-aware")
    for number in range(100):
        if number % 10 == 0:
            changes = {
                "scheduler.policy": policies[number // 10 % len(policies)],
                "scheduler.max_held_reqs": number,
                "scheduler.stall_timeout_s": 5.0 + number,
                "priority.high.target_load_tokens": 16 * number,
            }
            await sets(bed, changes)
        ask = DispatchAsked(DispatchRequested(f"r-{number}", "f-0", 160, number % 2, float(number)))
        bed.mailbox.say(encode(ask), [])
        if number % 7 == 0:
            bed.cluster.report("i-0", num_free_blocks=100 - number % 50)
        bed.controller.scheduler.check()
    sent = bed.mailbox.sent_to("mem://f-0", Dispatched)
    assert [each.dispatch.request_id for each in sent] == [f"r-{number}" for number in range(100)]
    assert {each.dispatch.instance_id for each in sent} == {"i-0", "i-1"}
