"""`llumctl attach`: what it orders for several servers, and what it prints."""

from typing import Any

from controller.api.operations.on_attached import AttachReport
from controller.api.wire import ErrorBody
from controller.api.wire.status import AttachedStatus
from tests.unit.cli_support import Cli
from tests.unit.fake_controller import Answer, FakeController

GOOD, OTHER, BAD = (f"http://10.0.0.{n}:8000" for n in (7, 8, 9))


def attached(body: dict[str, Any]) -> Answer:
    if body["url"] == BAD:
        return 409, ErrorBody(code="not_attached", message="it does not tokenize alike")
    server = AttachedStatus(
        url=body["url"], kind="vllm", model="llama", max_model_len=4096, capacity_tokens=90_000
    )
    return 200, AttachReport(instance_id="i-3", server=server, dry_run=body["dry_run"])


def ordered(fake: FakeController) -> list[tuple[str, bool]]:
    return [(body["url"], body["dry_run"]) for body in fake.bodies()]


def test_if_one_of_several_servers_is_refused_none_is_attached(
    fake: FakeController, cli: Cli
) -> None:
    fake.orders = {"POST /v1/attached": attached}
    assert "it does not tokenize alike" in cli("attach", GOOD, BAD, code=5).err
    assert ordered(fake) == [(GOOD, True), (BAD, True)]


def test_servers_are_attached_one_after_the_other(fake: FakeController, cli: Cli) -> None:
    fake.orders = {"POST /v1/attached": attached}
    told = cli("attach", GOOD, OTHER, GOOD, "--detach").err.splitlines()
    assert [line.split()[2] for line in told] == [GOOD, OTHER]
    assert ordered(fake)[-2:] == [(GOOD, False), (OTHER, False)]
    fake.ordered.clear()
    cli("attach", GOOD, "--detach")
    assert ordered(fake) == [(GOOD, False)]
