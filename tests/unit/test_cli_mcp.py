"""The tools of `llumctl mcp`, without the protocol: what they take, and when a plan counts."""

import contextlib
import json
from typing import Any

import pytest

from controller.api.errors import ConflictError, LlumctlError, NotFoundError, UsageError
from controller.api.operations.on_cluster import Scale, ScaleReport
from controller.api.operations.on_instances import Drain, DrainReport
from controller.api.operations.order import Kind, Order
from controller.api.operations.table import ORDERS
from llumctl.commands.mcp import MAX_PLANS, NOTE, TOKEN_LASTS_S, Tools, _failure
from tools import synthetic_cluster

INSTANCES = tuple(synthetic_cluster.instance(each) for each in ("i-0", "i-1"))


class Client:
    """A controller that drains every instance."""

    def __init__(self) -> None:
        self.model = ""
        """The model of the last question."""
        self.revision = 3
        self.given: list[Order[Any, Any]] = []

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None: ...

    def of_model(self, name: str) -> "Client":
        self.model = name
        return self

    def status(self) -> Any:
        return synthetic_cluster.cluster(INSTANCES).model_copy(update={"revision": self.revision})

    def whole_id(self, reference: str) -> str:
        return f"{reference}-whole"

    def send(self, order: Order[Any, Any]) -> Any:
        if isinstance(order, Scale):
            if not order.wanted.dry_run:
                self.given.append(order)
            number = order.wanted.target or 0
            return ScaleReport(
                previous=2, target=number, added=("i-2",), draining=(), revision=self.revision
            )
        if not order.wanted.dry_run:
            self.given.append(order)
        return DrainReport(
            instance_id=order.target,
            drain_id="op-1",
            state="draining",
            changes=True,
            revision=self.revision,
        )


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def tools(client: Client) -> Tools:
    made = Tools(lambda: client, orders=True, now_s=lambda: tools_now[0])  # type: ignore[arg-type,return-value]
    tools_now[0] = 100.0
    return made


tools_now = [100.0]


def data(answer: str) -> Any:
    told = json.loads(answer)
    assert told["note"] == NOTE
    return told["data"]


def plan(tools: Tools, instance_id: str = "i-1") -> str:
    told = data(tools.call("plan_drain", {"target": instance_id, "reason": "a fan"}))
    assert told["changes"]
    return str(told["token"])


def test_an_order_about_a_model_reaches_it_and_questions_may_name_one(
    client: Client, tools: Tools
) -> None:
    args = {"target": 3, "model": "small", "reason": "load"}
    told = data(tools.call("plan_scale", args))
    assert (told["order"], told["command"]) == ("small: scale 3", "llumctl scale --model small 3")
    assert data(tools.call("confirm", {"token": told["token"]}))["order"] == "small: scale 3"
    assert [each.url for each in client.given] == ["/models/small/v1/scale"]
    for name, each in tools.all().items():
        if each.reads and "model" in each.schema["properties"] and not name.startswith("plan_"):
            with contextlib.suppress(AttributeError):  # what this client does not answer
                tools.call(name, {"model": f"of-{name}"})
            assert client.model == f"of-{name}"
    about_one = {row for row in ORDERS.values() if row.about is Kind.CLUSTER}
    assert not any("model" in row.body.model_fields for row in about_one), "the tool's argument"


def test_a_hint_names_the_argument_instead_of_the_option() -> None:
    error = UsageError("it is about one model", "the same command with --model big")
    told = json.loads(_failure(error))
    assert told["try"] == "the same tool with the argument model = big"


def test_every_order_with_a_plan_has_a_tool_that_sets_nothing_of_the_plan_itself(
    tools: Tools,
) -> None:
    found = tools.all()
    planned = {f"plan_{kind}" for kind, row in ORDERS.items() if row.plan is not Order.plan}
    assert planned | {"plan_undo"} == {name for name in found if name.startswith("plan_")}
    assert [name for name, each in found.items() if not each.reads] == ["confirm"]
    for name in planned:
        schema = found[name].schema
        assert "reason" in schema["required"], "for the audit log"
        assert not {"dry_run", "force", "if_revision"} & schema["properties"].keys()
        about = ORDERS[name.removeprefix("plan_")].about
        assert ("target" in schema["required"]) == (about != "cluster")


def test_without_orders_there_is_nothing_to_change(client: Client) -> None:
    reading = Tools(lambda: client)  # type: ignore[arg-type,return-value]
    assert all(each.reads and not name.startswith("plan") for name, each in reading.all().items())
    with pytest.raises(NotFoundError, match="--orders"):
        reading.call("confirm", {"token": "t"})


def test_a_plan_is_carried_out_once_at_its_revision(tools: Tools, client: Client) -> None:
    token = plan(tools)
    assert client.given == [], "a plan changes nothing"
    assert data(tools.call("confirm", {"token": token}))["goes_on"]
    (given,) = client.given
    assert isinstance(given, Drain)
    assert (given.target, given.revision, given.wanted.reason) == ("i-1", 3, "a fan")
    with pytest.raises(NotFoundError, match="used"):
        tools.call("confirm", {"token": token})
    assert len(client.given) == 1


def test_a_scale_has_a_target_of_its_own(tools: Tools) -> None:
    told = data(tools.call("plan_scale", {"target": 3, "reason": "load"}))
    assert told["command"] == "llumctl scale 3"


def test_a_plan_ends_with_the_revision_and_with_time(tools: Tools, client: Client) -> None:
    changed, late = plan(tools), plan(tools)
    client.revision += 1
    with pytest.raises(ConflictError, match="revision 4, and the plan is about 3"):
        tools.call("confirm", {"token": changed})
    client.revision -= 1
    tools_now[0] += TOKEN_LASTS_S + 1
    for _ in range(2):
        with pytest.raises(LlumctlError, match="plan it again"):
            tools.call("confirm", {"token": late})
    assert client.given == []


def test_plans_that_nobody_confirms_are_forgotten(tools: Tools) -> None:
    first = plan(tools)
    for _ in range(MAX_PLANS):
        last = plan(tools)
    with pytest.raises(NotFoundError):
        tools.call("confirm", {"token": first})
    tools.call("confirm", {"token": last})


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("plan_drain", {"target": "i-1"}, "reason is missing"),
        ("plan_drain", {"reason": "x"}, "target is missing"),
        ("plan_drain", {"target": "i-1", "reason": "x", "force": True}, "no argument 'force'"),
        ("plan_drain", {"target": "i-1", "reason": "x", "deadline_s": -1}, "deadline_s"),
        ("plan_drain", {"target": "i-1", "reason": "x", "deadline_s": "soon"}, "deadline_s"),
        ("plan_scale", {"reason": "x"}, "target"),
        ("requests", {"limit": 0}, "limit must be"),
        ("requests", {"limit": True}, "limit must be"),
        ("history", {"points": 10**9}, "points must be"),
        ("instances", {"instance_id": "i-9"}, "no instance 'i-9'"),
        ("launch_missiles", {}, "no tool"),
    ],
)
def test_bad_arguments_name_what_is_wrong(
    tools: Tools, client: Client, name: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises((UsageError, NotFoundError), match=words):
        tools.call(name, arguments)
    assert client.given == []
