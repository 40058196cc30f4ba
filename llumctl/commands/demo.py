"""`llumctl demo`: two minutes of a storm in the dashboard, from a recording that comes with the
package. It needs no cluster, no vLLM and no Ray.

`tools/demo_recording.py` makes the recording: a real cluster with emulated engines, to which the
moments below happen.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from controller.api.errors import LlumctlError
from llumctl import arguments, output
from llumctl.commands.top import Replay, check_terminal, show_replay

RECORDING = Path(__file__).with_name("demo.jsonl.xz")
STORM_S, ADDED_S, CALM_S, DRAINED_S, KILLED_S, LENGTH_S = 12, 36, 41, 80, 98, 122
"""What happens when: many requests come, instances are added, few requests come again, an instance
is drained, the process of one is killed, the end."""
DRAINED, KILLED = "i-2", "i-4"
CAPTIONS = (
    (0, "A recorded cluster of six emulated instances; Space pauses it."),
    (6, "FREENESS: steps that each has room for. The freest gets more."),
    (STORM_S, "Now five times as many requests come, some of high priority."),
    (STORM_S + 9, "Memory is full: requests move to make room where others wait."),
    (STORM_S + 16, "The rest waits at the controller, high priority first."),
    (ADDED_S, "An operator adds two instances: key +, or llumctl scale +2."),
    (CALM_S, "The storm is over. The queue goes to whoever has room."),
    (CALM_S + 19, "Try: Enter opens a row, e lists all events, ? lists the keys."),
    (DRAINED_S, f"{DRAINED} is drained (key d): its requests move, no stream is cut."),
    (DRAINED_S + 9, f"{DRAINED} is empty: its machine could be switched off now."),
    (KILLED_S, f"The process of {KILLED} is killed. Its requests go on elsewhere."),
    (KILLED_S + 9, f"Its clients saw a short pause. {KILLED} starts again by itself."),
    (LENGTH_S - 8, "That was all. Your own cluster begins with: llumctl up"),
)
"""What the bottom line says from each second on."""


def demo(
    speed: Annotated[float, typer.Option(metavar="X", help="Speed; 2 is twice as fast.")] = 1.0,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII only.")] = False,
    theme: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="default, light, deuteranopia or monochrome."),
    ] = None,
) -> None:
    """Show two minutes of a storm in the console; q ends it."""
    arguments.within(0, speed, "--speed", above=True)
    check_terminal("demo")
    with _unpacked() as path:
        show_replay(Replay(path, speed, 0.0, CAPTIONS), theme, ascii_only=ascii_only)
    output.say("next:  llumctl up --engine emulated -n 4      then      llumctl top")


@contextlib.contextmanager
def _unpacked() -> Iterator[Path]:
    """The recording as a file that a replay can read."""
    import lzma  # here, because every command imports this module
    import tempfile

    try:
        with tempfile.TemporaryDirectory(prefix="llumctl-") as folder:
            path = Path(folder) / "demo.jsonl"
            path.write_bytes(lzma.decompress(RECORDING.read_bytes()))
            yield path
    except OSError as error:
        raise LlumctlError(f"cannot unpack the recording: {error.strerror}") from error
