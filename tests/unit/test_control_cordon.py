"""Cordon and uncordon: what is special in them on the control API, and the commands."""

import json
from collections.abc import AsyncIterator

import pytest

from controller.api.errors import EXIT_REFUSED
from controller.api.operations.on_instances import Cordon, Drain, Uncordon, Undrain, cordoned
from controller.api.operations.on_requests import Migrate
from controller.api.text.status_words import MOVES_ONLY, state_word
from controller.core.load.closed import ROWS, Closed, Row
from tests.unit.control_bed import Bed, bed_of, llumctl

Captured = pytest.CaptureFixture[str]


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    async with bed_of() as found:
        yield found


def marked(bed: Bed) -> set[str]:
    return set(bed.controller.keeper.spec.marked(Closed.CORDONED))


async def test_a_cordon_closes_an_instance_that_goes_on_serving(bed: Bed) -> None:
    plan = await bed.does(Cordon, dry_run=True)
    assert (plan.cordoned, plan.closed_by, plan.changes) == (True, ("cordoned",), True)
    assert (plan.num_requests, plan.revision) == (1, 0)
    made = await bed.does(Cordon, reason="its fan")
    assert (made.cordoned, made.changes, made.reason, made.revision) == (True, True, "its fan", 1)
    assert not bed.controller.scheduler.instances["i-0"].schedulable
    shown = (await bed.status()).instances[0]
    assert (shown.state, shown.closed_by, state_word(shown)) == (
        "active",
        ("cordoned",),
        "cordoned",
    )
    assert shown.freeness_steps is not None, "it does not drain"
    assert (await bed.does(Cordon)).changes is False
    assert (await bed.does(Drain, "i-1", dry_run=True)).changes, "i-2 would serve"
    back = await bed.does(Uncordon)
    assert (back.cordoned, back.closed_by, back.changes) == (False, (), True)
    assert (await bed.does(Uncordon)).changes is False


async def test_a_drain_and_its_end_leave_the_cordon(bed: Bed) -> None:
    await bed.does(Cordon)
    await bed.does(Drain)
    assert (await bed.status()).instances[0].closed_by == ("draining", "cordoned")
    planned = await bed.does(Uncordon, dry_run=True)
    assert planned.closed_by == ("draining",)
    assert cordoned(planned) == "i-0: would not be cordoned any more, but still draining"
    await bed.does(Undrain)
    assert bed.controller.keeper.spec.closed == {"i-0": {Closed.CORDONED}}
    await bed.does(Drain)
    back = await bed.does(Uncordon)
    assert cordoned(back) == "i-0: not cordoned any more; it is draining"


async def test_the_last_instance_is_cordoned_by_force_only(bed: Bed) -> None:
    for each in ("i-0", "i-1"):
        await bed.does(Cordon, each)
    answer = await bed.gives(Cordon, "i-2")
    assert (answer.status_code, answer.json()["code"]) == (409, "last_instance")
    hint = "llumctl uncordon i-0 i-1      or      llumctl cordon i-2 --force"
    assert answer.json()["hint"] == hint
    assert (await bed.does(Cordon, "i-2", force=True)).cordoned


async def test_no_request_is_moved_to_a_cordoned_instance(bed: Bed) -> None:
    await bed.does(Cordon, "i-1")
    refusal = await bed.refusal(Migrate, to="i-1", dry_run=True)
    assert refusal[:2] == (409, "unschedulable")
    assert "it is cordoned" in refusal[2]
    assert (await bed.does(Migrate, dry_run=True)).to_instance_id == "i-2"


async def test_what_a_mark_does_not_stop_is_not_refused(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS, Closed.CORDONED, Row(False, False, False, False, "it is looked at"))
    assert (await bed.does(Cordon, "i-1")).closed_by == ()
    assert (await bed.does(Migrate, to="i-1", dry_run=True)).outcome == "would_move"
    told = bed.controller.directories.present().instances
    assert all(each.takes_requests for each in told)


async def test_one_command_cordons_all_or_none(bed: Bed, capsys: Captured) -> None:
    for dry in ((), ("--dry-run",)):
        assert await llumctl("cordon", "i-0", "i-1", "i-2", *dry) == EXIT_REFUSED
        assert "without i-0, i-1, i-2 no instance would serve" in capsys.readouterr().err
    assert await llumctl("cordon", "i-0", "i-9") != 0
    assert (marked(bed), bed.revision) == (set(), 0)
    assert await llumctl("cordon", "i-0", "i-1", "i-2", "--force") == 0
    assert marked(bed) == {"i-0", "i-1", "i-2"}


async def test_the_commands_cordon_and_uncordon(bed: Bed, capsys: Captured) -> None:
    assert await llumctl("cordon", "i-0", "i-1", "--dry-run") == 10
    assert capsys.readouterr().out.splitlines() == [
        "i-0: would be cordoned, would keep its 1 request",
        "i-1: would be cordoned, would keep its 0 requests",
    ]
    assert await llumctl("cordon", "i-0", "i-1", "-m", "a fan") == 0
    capsys.readouterr()
    assert await llumctl("status") == 0
    assert capsys.readouterr().out.count(" cordoned ") == 2
    assert await llumctl("cordon", "i-0") == 0
    assert "nothing to change" in capsys.readouterr().err
    assert await llumctl("undo", "-y") == 0
    assert marked(bed) == {"i-0"}
    assert await llumctl("uncordon", "i-0", "-o", "json") == 0
    assert '"cordoned": false' in capsys.readouterr().out
    assert await llumctl("undo", "-y") == 0
    assert marked(bed) == {"i-0"}


async def test_uncordon_takes_drains_back_too(bed: Bed, capsys: Captured) -> None:
    for arguments in (("drain", "i-1", "-y", "--detach"), ("cordon", "i-1"), ("cordon", "i-2")):
        assert await llumctl(*arguments) == 0
    capsys.readouterr()
    assert await llumctl("uncordon", "i-1", "i-2", "--dry-run") == 10
    assert capsys.readouterr().out.splitlines() == [
        "i-1: drain and cordon would be taken back, would get new requests again",
        "i-2: would get new requests again",
    ]
    assert await llumctl("uncordon", "i-1", "i-2", "--if-revision", str(bed.revision)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "i-1: drain and cordon taken back, gets new requests again",
        "i-2: gets new requests again",
    ]
    assert (marked(bed), bed.controller.keeper.spec.drains) == (set(), {})
    assert await llumctl("uncordon", "i-1", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drains"] == []
    assert [each["cordoned"] for each in found["cordons"]] == [False]


def test_clients_know_which_reasons_are_about_moves_alone() -> None:
    assert {str(each) for each in Closed if not each.stops_requests} == MOVES_ONLY
