"""`llumctl demo`: its recording shows what the captions say, and it needs no engine to be shown."""

import asyncio
import lzma
import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from controller.api.recording import RecordingReader
from controller.api.wire.requests import Event
from controller.api.wire.stream import EventFrame, StatusFrame
from llumctl.commands import demo
from llumctl.commands.demo import CAPTIONS, DRAINED, KILLED, LENGTH_S
from tests.unit.cli_support import Cli
from tests.unit.tui import demo_picture
from tests.unit.tui.tui_support import dashboard, settle, shown
from tools.pty_process import terminal
from tui.replay import ReplaySource

MAX_BYTES = 600 * 1024
"""Everybody who installs llumctl downloads it."""
SLACK_S = 6.0
"""How long an order may take until its event."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo.jsonl"
    path.write_bytes(lzma.decompress(demo.RECORDING.read_bytes()))
    return path


@pytest.fixture(scope="module")
def reader(file: Path) -> Iterator[RecordingReader]:
    with RecordingReader(file) as opened:
        yield opened


def statuses(reader: RecordingReader) -> list[StatusFrame]:
    return [each for each in reader if isinstance(each, StatusFrame)]


def events(reader: RecordingReader, kind: str) -> list[tuple[float, Event]]:
    """The events of a kind, each with its second of the recording."""
    begin_s = statuses(reader)[0].time_s
    return [
        (each.event.time_s - begin_s, each.event)
        for each in reader
        if isinstance(each, EventFrame) and each.event.kind == kind
    ]


def test_the_recording_is_small_and_names_nobody(file: Path, reader: RecordingReader) -> None:
    assert demo.RECORDING.stat().st_size < MAX_BYTES
    found = statuses(reader)
    assert not reader.truncated
    assert found[-1].time_s - found[0].time_s == pytest.approx(LENGTH_S, abs=SLACK_S)
    nodes = {item.node for each in found for item in each.status.instances if item.node}
    assert nodes == {"10.0.0.11"}
    assert {event.actor for _, event in events(reader, "operator")} == {"ana@desk"}
    text = file.read_text("utf-8")
    for private in ("/tmp/", "/home/", "/root", "root@"):
        assert private not in text


def test_what_the_captions_say_happens(reader: RecordingReader) -> None:
    begin_s = statuses(reader)[0].time_s
    words = {}
    for each in statuses(reader):
        assert each.status.verdict is not None
        words.setdefault(each.status.verdict.word, each.time_s - begin_s)
    assert demo.STORM_S < words["overloaded"] < demo.CALM_S
    assert statuses(reader)[-1].status.verdict.word in ("ok", "recovering")  # type: ignore[union-attr]
    (drained,) = [at_s for at_s, each in events(reader, "drained") if each.instance_id == DRAINED]
    assert demo.DRAINED_S <= drained < demo.DRAINED_S + 9 + SLACK_S
    died = [at_s for at_s, each in events(reader, "instance_died") if each.instance_id == KILLED]
    assert demo.KILLED_S - SLACK_S < died[0] < demo.KILLED_S + SLACK_S
    assert events(reader, "replayed")
    assert not events(reader, "failed"), "no client noticed more than a pause"
    assert len(events(reader, "migrated")) > 20
    assert len(statuses(reader)[-1].status.instances) == 8


def test_the_moving_picture_is_small_and_has_the_captions() -> None:
    assert demo_picture.PICTURE.stat().st_size <= demo_picture.MAX_BYTES
    root = ElementTree.parse(demo_picture.PICTURE).getroot()
    frames = [each for each in root if each.get("class", "").startswith("f ")]
    assert len(frames) == len(demo_picture.moments())
    text = " ".join("".join(each.itertext()) for each in root.iter() if each.tag.endswith("text"))
    assert [caption for _, caption in CAPTIONS if caption not in text] == []


def test_captions_are_in_order_and_fit() -> None:
    times_s = [at_s for at_s, _ in CAPTIONS]
    assert times_s == sorted(times_s)
    assert times_s[0] == 0
    for _, text in CAPTIONS:
        assert len(text) <= 80 - len("   ? help  q quit"), text


async def test_captions_come_at_their_moments_and_the_end_is_the_end(file: Path) -> None:
    with RecordingReader(file) as opened:
        clock = [0.0]
        source = ReplaySource(opened, clock=lambda: clock[0])
        async with dashboard(source, (80, 24), captions=CAPTIONS) as (app, pilot):
            for at_s, text in CAPTIONS:
                clock[0] = at_s + 0.5
                await settle(app, pilot)
                bottom = shown(app).splitlines()[-1]
                assert bottom.startswith(f" {text} ")
                assert bottom.rstrip().endswith("q quit")
            source.seek(demo.STORM_S + 1)
            await settle(app, pilot)
            assert "Now five times" in shown(app)
            source.seek(source.length_s)
            app._tick()
            for _ in range(100):
                if not app.is_running:
                    break
                await asyncio.sleep(0.05)
            assert app._exit


def test_it_needs_a_terminal(cli: Cli) -> None:
    assert "demo needs a terminal" in cli("demo", code=5).err


@pytest.mark.process
def test_it_needs_no_engine(tmp_path: Path) -> None:
    for name in ("ray", "vllm", "torch", "numpy", "zmq", "msgspec", "uvicorn", "tokenizers"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    with terminal("demo", env={**os.environ, "PYTHONPATH": path}) as screen:
        screen.until("six emulated instances", "FREENESS", "q quit")
        screen.press("q")
        assert screen.exit_code() == 0
        assert "next:  llumctl up" in screen.text
