"""Operations on a cluster of two models over the real control API: each is named and taken back
where it was done; `llumctl set` without a model changes all."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from controller.adapters.http.control_server import Access, ControlServer
from controller.adapters.http.model_api import ModelApi
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations.on_cluster import Scale, ScaleRequest, SetSettings
from controller.api.operations.on_instances import Drain, DrainRequest
from controller.api.operations.on_requests import Migrate, MigrateRequest
from controller.api.settings.settings import Settings
from controller.api.state.audit import AuditLog
from controller.runtime.messages.members import FrontendLimits
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control.control_support import LABELS, TOKEN, VIEW_TOKEN, Cluster

NAMES = ("big", "small")
MOVES = "migration.max_moves"
LIVE = "endpoint.max_live_requests"


@pytest.fixture
def clusters() -> list[Cluster]:
    """Of each model."""
    first = Cluster(2, NAMES[0])
    return [first, Cluster(2, NAMES[1], beside=first)]


@pytest.fixture
async def client(tmp_path: Path, clusters: list[Cluster]) -> AsyncIterator[ControlClient]:
    """Of all models; `remember` has the cluster for commands."""
    async with serving(tmp_path, clusters) as url:
        remember(url, token=TOKEN)
        with ControlClient(url, TOKEN) as found:
            yield found


@asynccontextmanager
async def serving(folder: Path, clusters: Sequence[Cluster]) -> AsyncIterator[str]:
    audit = AuditLog(folder)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    apis: dict[str, ModelApi] = {}
    for name, each in zip(NAMES, clusters, strict=True):
        each.up()
        labels = replace(LABELS, model=name)
        apis[name] = ModelApi(
            each.controller,
            labels,
            audit,
            Settings(),
            log_dir=folder,
            beside=next(iter(apis.values()), None),
        )
    server = ControlServer(
        apis,
        Access("127.0.0.1", 0, TOKEN, VIEW_TOKEN),
        metrics=lambda _: b"",
        metrics_type="text/plain",
        listening=listening,
    )
    over = asyncio.Event()

    async def work() -> None:
        await over.wait()

    running = asyncio.create_task(server.run_beside(work()))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        await asyncio.wait_for(running, 5.0)


async def llumctl(*arguments: str, code: int = 0) -> None:
    assert await asyncio.to_thread(run, list(arguments)) == code, arguments


async def test_what_is_done_to_a_model_names_it_and_is_taken_back_there(
    client: ControlClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(client.send, SetSettings.to([f"{MOVES}=2"]).on("small"))
    await asyncio.to_thread(client.send, Drain("i-3", DrainRequest()))
    await asyncio.to_thread(client.send, SetSettings.to([f"{MOVES}=5"]).on("big"))
    done = await asyncio.to_thread(client.operations)
    assert [each.actions[0] for each in done.operations] == [
        f"big: set {MOVES} = 5, was 4",
        "drain i-3",
        f"small: set {MOVES} = 2, was 4",
    ]
    of_small = await asyncio.to_thread(client.of_model("small").operations)
    assert [each.actions[0] for each in of_small.operations] == [
        "drain i-3",
        done.operations[2].actions[0],
    ]
    await llumctl("undo", "--list")
    assert f"set --model big {MOVES}=4" in capsys.readouterr().out
    await llumctl("undo", done.operations[2].id, "-y")
    values = {
        name: {each.key: each.value for each in settings.settings}
        for name in NAMES
        for settings in [await asyncio.to_thread(client.of_model(name).settings)]
    }
    assert [values[name][MOVES] for name in NAMES] == [5, 4]


@pytest.mark.usefixtures("client")
async def test_one_command_is_about_instances_of_two_models(
    clusters: list[Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    def going() -> list[set[str]]:
        return [set(each.controller.keeper.spec.drains) for each in clusters]

    for command in (("drain", "-y"), ("cordon",)):
        await llumctl(*command, "i-0", "i-2", "i-9", code=4)
        assert "there is no instance 'i-9'" in capsys.readouterr().err
        for beyond, model in (("i-3", "small"), ("i-1", "big")):
            await llumctl(*command, "i-0", "i-2", beyond, code=5)
            told = capsys.readouterr().err
            assert f"no instance would serve {model}\ntry:   llumctl scale {model}=+1 " in told
    assert going() == [set(), set()]
    await llumctl("drain", "i-0", "i-2", "-y", "--detach")
    assert going() == [{"i-0"}, {"i-2"}]


async def test_a_request_does_not_move_to_an_instance_of_another_model(
    client: ControlClient,
) -> None:
    for to, why in (
        (
            "i-2",
            "instance i-2 cannot take the request: it serves small, and the request is for big",
        ),
        ("i-9", "there is no instance 'i-9'"),
        ("f-0", "there is no instance 'f-0'"),
    ):
        order = Migrate("r-1", MigrateRequest(to=to))
        with pytest.raises(LlumctlError) as told:
            await asyncio.to_thread(client.of_model("big").send, order)
        assert told.value.message == why


@pytest.mark.usefixtures("client")
async def test_an_unknown_model_is_refused_with_one_that_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await llumctl("status", "--model", "nosuch", code=4)
    told = capsys.readouterr().err
    assert "there is no model 'nosuch'; the cluster serves big, small" in told
    assert "try:   the same command with --model big" in told


async def test_without_a_model_set_changes_all_or_none(
    client: ControlClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await llumctl("set", f"{MOVES}=3")
    printed = capsys.readouterr()
    assert [line for line in printed.out.splitlines() if line in ("big:", "small:")]
    assert printed.err.splitlines() == ["big: revision 1", "small: revision 2"]
    await llumctl("set", f"{MOVES}=-3", code=2)
    await llumctl("set", f"{MOVES}=2", "--if-revision", "1", code=6)
    await llumctl("set", f"{MOVES}=2", "-o", "json", code=2)
    assert "-o json: is about one model, and the cluster serves" in capsys.readouterr().err
    await llumctl("set", f"{MOVES}=4", "--model", "small", "--save", code=2)
    await llumctl("set", f"{MOVES}=7", "--dry-run", code=10)
    await llumctl("set", f"{MOVES}=4", "--model", "small")
    await llumctl("set", MOVES, "--model", "big", "-o", "json")
    assert '"value": 3' in capsys.readouterr().out
    assert (await asyncio.to_thread(client.status)).revision == 3


async def test_a_setting_of_the_cluster_has_one_value_through_whichever_model(
    client: ControlClient, clusters: list[Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the frontends of each model are told, and who is named."""

    def limits() -> list[int]:
        return [
            each.mailbox.sent_to("mem://f-0", FrontendLimits)[-1].max_live_requests
            for each in clusters
        ]

    async def values() -> list[object]:
        lists = [await asyncio.to_thread(client.of_model(name).settings) for name in NAMES]
        return [next(each.value for each in found.settings if each.key == LIVE) for found in lists]

    assert len(set(limits())) == 1
    await llumctl("set", f"{LIVE}=7", f"{MOVES}=2")
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["revision 1", "big: revision 2", "small: revision 3"]
    assert limits() == [7, 7]
    await llumctl("set", f"{LIVE}=9", "--model", "small", "-o", "json")
    assert (limits(), await values()) == ([9, 9], [9, 9])
    assert [len(each.controller.keeper.spec.settings) for each in clusters] == [2, 1]
    done = (await asyncio.to_thread(client.operations)).operations
    assert done[0].actions == (f"set {LIVE} = 9, was 7",)
    await llumctl("undo", "-y")
    assert (limits(), await values()) == ([7, 7], [7, 7])
    await llumctl("set", f"{LIVE}=3", f"{MOVES}=3", "--model", "small", code=2)
    assert f"{LIVE} is of all models together, and {MOVES} of one" in capsys.readouterr().err
    await llumctl("set", f"{LIVE}=0", f"{MOVES}=3", code=2)
    assert (limits(), await values()) == ([7, 7], [7, 7])
    assert (await asyncio.to_thread(client.status)).revision == 5


async def test_a_scale_of_no_model_says_which_there_are(
    client: ControlClient, capsys: pytest.CaptureFixture[str]
) -> None:
    await llumctl("scale", "3", "-y", code=2)
    assert "the cluster serves big, small" in capsys.readouterr().err
    report = await asyncio.to_thread(
        client.send, Scale(ScaleRequest(target=3, dry_run=True)).on("small")
    )
    assert (report.previous, report.target) == (2, 3)
