"""The status of several models: no field is forgotten, and each has the value of all models."""

import pytest

from controller.adapters.http.merged_status import Merge, first, together, total
from controller.api.wire import WireModel
from controller.api.wire.status import (
    AlarmStatus,
    ClusterStatus,
    HeldHeadStatus,
    HeldStatus,
    InstanceState,
    KeyStatus,
    NoticeStatus,
    RefusedStatus,
    ReplaysStatus,
    SavedStatus,
)
from tools import synthetic_cluster as synthetic


class Some(WireModel):
    name: str
    num_reqs: int | None = None


def status_of(*ids: str, **changes: object) -> ClusterStatus:
    return synthetic.cluster(tuple(map(synthetic.instance, ids))).model_copy(update=changes)


def test_a_field_without_a_rule_and_a_rule_without_a_field_are_refused() -> None:
    with pytest.raises(TypeError, match="Some: each field needs a rule: num_reqs"):
        Merge(Some, name=first)
    with pytest.raises(TypeError, match="other"):
        Merge(Some, name=first, num_reqs=total, other=first)
    merge = Merge(Some, name=None, num_reqs=total)
    with pytest.raises(TypeError, match="and wanted are"):
        merge([Some(name="a")])
    found = merge(
        [Some(name="a", num_reqs=2), Some(name="b"), Some(name="c", num_reqs=3)], name="x"
    )
    assert found == Some(name="x", num_reqs=5)
    assert merge([Some(name="a")], name="x").num_reqs is None


def test_numbers_are_sums_and_what_has_one_key_is_one() -> None:
    def status(instance_id: str, number: int) -> ClusterStatus:
        saved = SavedStatus(way="moved", reason="drain", num_saved=number)
        refused = {"level": "normal", "num_refused": number, "num_refused_last_minute": 1}
        return status_of(
            instance_id,
            num_held_reqs=number,
            refused=(
                RefusedStatus(reason="late", **refused),
                RefusedStatus(reason=instance_id, **refused),
            ),
            keys=(
                KeyStatus(key="k", num_live_reqs=number, num_tokens_last_minute=5, num_refused=0),
            ),
            replays=ReplaysStatus(num_replaying=number, saved=(saved,)),
            tokens_per_s=float(number),
        )

    found = together({"big": status("i-0", 2), "small": status("i-1", 3)})
    assert (found.num_held_reqs, found.tokens_per_s) == (5, 5.0)
    assert [(each.reason, each.num_refused) for each in found.refused] == [
        ("late", 5),
        ("i-0", 2),
        ("i-1", 3),
    ]
    assert [(each.num_live_reqs, each.num_tokens_last_minute) for each in found.keys] == [(5, 10)]
    assert found.replays.num_replaying == 5
    assert [each.num_saved for each in found.replays.saved] == [5]
    assert [each.id for each in found.instances] == ["i-0", "i-1"]
    alone = status("i-0", 2)
    assert found.autoscale.num_instances == 2 * alone.autoscale.num_instances
    assert [each.id for each in found.frontends] == [each.id for each in alone.frontends]


def test_a_machine_that_leaves_is_one_notice_and_the_earliest_is_first() -> None:
    def notice(node: str, leaves_at_s: float, *ids: str) -> NoticeStatus:
        return NoticeStatus(node=node, why="spot", leaves_at_s=leaves_at_s, instance_ids=ids)

    found = together(
        {
            "big": status_of("i-0", notices=(notice("n-2", 90.0, "i-0"),)),
            "small": status_of("i-1", notices=(notice("n-1", 80.0), notice("n-2", 90.0, "i-1"))),
        }
    )
    assert [(each.node, each.instance_ids) for each in found.notices] == [
        ("n-1", ()),
        ("n-2", ("i-0", "i-1")),
    ]


def test_alarms_are_in_order_and_one_about_a_frontend_is_told_once() -> None:
    of_frontend = AlarmStatus(subject="f-0", text="restarts", since_s=20.0)
    full = AlarmStatus(subject="cluster", text="full", since_s=10.0)
    over = AlarmStatus(subject="i-0", text="slow", since_s=1.0, ended_s=5.0)
    found = together(
        {
            "big": status_of("i-0", alarms=(of_frontend, over)),
            "small": status_of("i-1", alarms=(full, of_frontend)),
        }
    )
    assert [(each.subject, each.text) for each in found.alarms] == [
        ("cluster", "small: full"),
        ("f-0", "restarts"),
        ("i-0", "slow"),
    ]


def test_of_a_frontend_the_part_that_does_not_serve_counts_and_of_held_requests_the_oldest() -> (
    None
):
    def held(request_id: str, waited_s: float) -> HeldStatus:
        head = HeldHeadStatus(
            place=1,
            why="memory",
            request_id=request_id,
            frontend_id="f-0",
            level="normal",
            rank=0,
            waited_s=waited_s,
        )
        return HeldStatus(num_by_level={"normal": 2}, oldest_wait_s=waited_s, head=head)

    big, small = (
        status_of(instance_id, held=held(instance_id, waited_s))
        for instance_id, waited_s in (("i-0", 1.0), ("i-1", 4.0))
    )
    (frontend, *others) = small.frontends
    starting = frontend.model_copy(update={"state": InstanceState.STARTING, "detail": "imports"})
    small = small.model_copy(update={"frontends": (starting, *others)})
    found = together({"big": big, "small": small})
    assert (found.frontends[0].state, found.frontends[0].detail) == ("starting", "imports")
    assert found.frontends[0].num_live_reqs == 2 * frontend.num_live_reqs
    assert found.held is not None
    assert (found.held.head.request_id, found.held.num_by_level) == ("i-1", {"normal": 4})
    assert together({"big": big, "small": status_of("i-2")}).held == big.held
