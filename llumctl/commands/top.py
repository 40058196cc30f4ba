"""`llumctl top`: the dashboard, live or from a recording."""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.api.text.quantities import printable
from llumctl import arguments, connect, meant, output
from llumctl.commands.options import Cluster, Model, check_extra
from llumctl.commands.record import check_refresh, new_recording, reached
from llumctl.config import config_file
from tui import startup
from tui.startup import DEFAULT_THEME, MONOCHROME, THEME_NAMES

if TYPE_CHECKING:
    from controller.api.recording import RecordingWriter
    from controller.api.settings.settings import ConsoleTable
    from llumctl.config.config_file import Origins
    from tui.app import Dashboard, Next
    from tui.live import Caller, Source
    from tui.own_commands import OwnCommand

ELSEWHERE = "llumctl status --watch      or      llumctl record FILE"
ASK_TIMEOUT_S = 1.0
"""How long each cluster may take to answer, so that a cluster that hangs does not hide the
others."""
BROWSER_DRIVER = "textual.drivers.web_driver:WebDriver"
"""The value of $TEXTUAL_DRIVER if a server for browsers started this process."""
NO_GLYPHS = ("linux", "vt100", "vt220")
"""Terminals whose fonts lack block elements."""


@dataclass(frozen=True)
class Look:
    """How the dashboard looks, and its keys. `keymap` has been checked."""

    theme: str
    ascii_only: bool
    keymap: Mapping[str, str]
    own: "tuple[OwnCommand, ...]"
    limits: "ConsoleTable"
    in_browser: bool


@dataclass(frozen=True)
class Replay:
    """A recording, its speed, and where in it the replay begins. `captions`: what the bottom line
    says from a second on; a replay with captions ends by itself."""

    path: Path
    speed: float
    at_s: float
    captions: tuple[tuple[float, str], ...] = ()


def top(
    cluster: Cluster = None,
    model: Model = None,
    refresh: Annotated[
        float, typer.Option(metavar="S", help="Seconds between two statuses.")
    ] = 1.0,
    readonly: Annotated[
        bool, typer.Option("--readonly", help="Allow no changes in this session.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record into a new file, for --replay.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Show a recording instead of a cluster.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(metavar="X", help="Speed of the replay; 2 is twice as fast (1).")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="2m", help="Begin the replay at this time in it.")
    ] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII only.")] = False,
    theme: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="default, light, deuteranopia or monochrome."),
    ] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve it to browsers on this machine, read-only.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="With --web: allow changes from browsers.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(metavar="N", help="With --web: the port (any free one)."),
    ] = None,
) -> None:
    """Show the cluster live in a console, and change it by keys.

    The key ? lists all keys.
    """
    check_refresh(refresh)
    arguments.within(0, speed, "--speed", above=True)
    at_s = 0.0 if at is None else arguments.seconds(at, "--at")
    if replay is None and (speed is not None or at is not None):
        raise UsageError("--speed, --at: only with --replay")
    if replay is not None and (record is not None or cluster is not None):
        raise UsageError("--replay: not with --record or --cluster")
    if replay is not None and model is not None:
        raise UsageError("--replay: not with --model, as a recording has what was recorded")
    if not web and (write or port is not None):
        raise UsageError("--write, --port: only with --web")
    if web and (record is not None or (write and readonly)):
        raise UsageError("--web: not with --record, and --write not with --readonly")
    arguments.within(0, port, "--port", 65535)
    if web:
        check_extra("web", "--web")
    in_browser = os.environ.get("TEXTUAL_DRIVER", "") == BROWSER_DRIVER
    chosen = _checked_theme(theme)
    shown = None if replay is None else Replay(replay, speed or 1.0, at_s)
    if web:
        look = _look(chosen, ascii_only=ascii_only, in_browser=in_browser)
        _serve(look, cluster, shown, refresh=refresh, write=write, port=port or 0)
        return
    if shown is not None:
        if not in_browser:
            check_terminal("top", ELSEWHERE)
        show_replay(shown, chosen, ascii_only=ascii_only, in_browser=in_browser)
        return
    name = _attached_or_asked(cluster)
    shown_before: list[str] = []
    models: tuple[str, ...] = ()
    while name:
        connect.check(name)
        if not in_browser:
            check_terminal("top", ELSEWHERE)
        shown_before.append(name)
        asked = partial(_look, chosen, ascii_only=ascii_only, in_browser=in_browser)
        frame = _first_frame(f"{name}  + connecting", ascii_only=ascii_only, in_browser=in_browser)
        wanted = _show_live(shown_before, models, frame, asked, record, refresh, readonly=readonly)
        name, models = ("", ()) if wanted is None else (wanted.cluster, wanted.models)


def _show_live(
    shown_before: Sequence[str],
    models: tuple[str, ...],
    frame: contextlib.AbstractContextManager[None],
    asked: Callable[[], Look],
    record: Path | None,
    refresh_s: float,
    *,
    readonly: bool,
) -> "Next | None":
    """Shows the last of these clusters until the operator leaves. Returns what to show next; None
    if that is nothing. `models`: the models of the cluster that are known."""
    name, writer = shown_before[-1], None
    with contextlib.ExitStack() as stack:
        with frame, startup.collector_paused():
            look = asked()
            called = reached(name)
            if record is not None:
                writer = stack.enter_context(new_recording(record, name, called, refresh_s))
            app = _live(
                name, called, look, refresh_s, writer, shown_before, models, readonly=readonly
            )
        _run(app)
    if writer is not None:
        output.say(f"recorded {writer.num_frames} frames in {writer.path}")
    if app.next is not None:
        meant.cluster_is(app.next.cluster)
        meant.model_is(app.next.model)
    return app.next


def show_replay(
    replay: Replay, theme: str | None, *, ascii_only: bool, in_browser: bool = False
) -> None:
    """Shows a recording until the operator leaves. `theme`: None for the usual one."""
    chosen = _checked_theme(theme)
    title = f"REPLAY  {replay.path.name}"
    frame = _first_frame(title, ascii_only=ascii_only, in_browser=in_browser)
    with contextlib.ExitStack() as stack:
        with frame, startup.collector_paused():
            look = _look(chosen, ascii_only=ascii_only, in_browser=in_browser)
            source = stack.enter_context(_recorded(replay, look.limits))
            captions = replay.captions
            app = _dashboard(source, look, recording=False, readonly=True, captions=captions)
        _run(app)


def _checked_theme(theme: str | None) -> str:
    chosen = theme or (MONOCHROME if os.environ.get("NO_COLOR") else DEFAULT_THEME)
    arguments.one_of(chosen, THEME_NAMES, "--theme", "a theme")
    return chosen


def _serve(
    look: Look,
    cluster: str | None,
    replay: Replay | None,
    *,
    refresh: float,
    write: bool,
    port: int,
) -> None:
    """Serves the dashboard to browsers, with a process for each window, until Ctrl-C. A wrong
    cluster or recording is reported here, not in each window."""
    shown = ["--theme", look.theme, "--refresh", f"{refresh:g}"]
    shown += ["--ascii"] * look.ascii_only + ["--readonly"] * (not write)
    if replay is None:
        name = _attached_or_asked(cluster)
        reached(name)
        shown += ["--cluster", name, *(["--model", meant.model()] if meant.model() else [])]
    else:
        with _recorded(replay, look.limits):
            shown += ["--replay", str(replay.path.resolve())]
        shown += ["--speed", f"{replay.speed:g}", "--at", f"{replay.at_s:.3f}s"]
    from llumctl.web import server

    server.serve([sys.executable, "-P", "-m", "llumctl", "top", *shown], port)


def check_terminal(command: str, instead: str = "") -> None:
    """Refuses to run if one of the three standard streams is not a terminal: the keys come from
    stdin, the screen goes to stderr, and stdout would be a pipe. `instead`: the hint."""
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout"), (sys.stderr, "stderr")):
        if not output.is_terminal(stream):
            raise RefusedError(f"{command} needs a terminal, and {name} is not one", instead)
    if not output.can_redraw(sys.stderr):
        raise RefusedError(
            f"{command} needs a terminal that can move its cursor, and TERM says it cannot",
            instead,
        )


def _first_frame(
    title: str, *, ascii_only: bool, in_browser: bool
) -> contextlib.AbstractContextManager[None]:
    if in_browser:
        return contextlib.nullcontext()
    rule = "─" if _has_glyphs() and not ascii_only else "-"
    return startup.first_frame(sys.stderr, title, rule=rule)


def _look(theme: str, *, ascii_only: bool, in_browser: bool) -> Look:
    from llumctl.config import settings

    return Look(theme, ascii_only, *_keys_and_commands(), settings.load_console(), in_browser)


@contextlib.contextmanager
def _recorded(replay: Replay, limits: "ConsoleTable") -> Iterator["Source"]:
    from controller.api.recording import RecordingReader
    from tui.replay import ReplaySource

    with RecordingReader(replay.path) as reader:
        yield ReplaySource(reader, speed=replay.speed, at_s=replay.at_s, limits=limits)


def _keys_and_commands() -> "tuple[dict[str, str], tuple[OwnCommand, ...]]":
    """The tables `[keys]` and `[commands]`. Raises UsageError, which says where the wrong value
    stands."""
    from llumctl.config import settings
    from tui import actions, own_commands
    from tui.own_commands import OWN

    wanted, origins = settings.load_keys()
    tables, own_origins = settings.load_commands()
    try:
        own = own_commands.checked_commands(tables)
        return actions.checked_keymap(wanted, own_commands.own_actions(own)), own
    except own_commands.OwnCommandError as error:
        path: tuple[str, ...] = ("commands", error.name, *filter(None, (error.field,)))
        raise _placed(own_origins, path, error) from error
    except actions.KeymapError as error:
        if error.action_id.startswith(OWN):
            path = ("commands", error.action_id.removeprefix(OWN), "key")
            raise _placed(own_origins, path, error) from error
        raise _placed(origins, ("keys", error.action_id), error) from error


def _placed(origins: "Origins", path: "tuple[str, ...]", error: Exception) -> UsageError:
    return UsageError(f"{origins.of(path)}: {error}", origins.cure(path))


def _live(
    name: str,
    called: str,
    look: Look,
    refresh_s: float,
    writer: "RecordingWriter | None",
    shown_before: Sequence[str],
    models: tuple[str, ...],
    *,
    readonly: bool,
) -> "Dashboard":
    """The dashboard of a live cluster. Its source listens to the controller already while the
    modules that draw are imported. `shown_before`: the clusters of this session, also this one."""
    from tui.live import LiveCaller, LiveSource

    # The model of now: what is still being called when another one is shown must not go there.
    reach = partial(connect.client, name, model=meant.model())
    live = LiveSource(called, reach, status_every_s=refresh_s, recorder=writer)
    live.start()
    recording = writer is not None
    return _dashboard(
        live,
        look,
        LiveCaller(reach),
        name,
        shown_before,
        models,
        recording=recording,
        readonly=readonly,
    )


def _dashboard(
    source: "Source",
    look: Look,
    caller: "Caller | None" = None,
    cluster: str = "",
    shown_before: Sequence[str] = (),
    models: tuple[str, ...] = (),
    *,
    recording: bool,
    readonly: bool,
    captions: tuple[tuple[float, str], ...] = (),
) -> "Dashboard":
    from controller.api.state import run_state
    from tui.app import Dashboard, tick_s
    from tui.drawing import ASCII, UNICODE
    from tui.session import Options

    options = Options(
        glyphs=UNICODE if not look.ascii_only and (look.in_browser or _has_glyphs()) else ASCII,
        theme=look.theme,
        keymap=look.keymap,
        own=look.own,
        cluster=cluster,
        of_cluster=meant.option(cluster) if cluster else "",
        model=meant.model() if cluster else "",
        models=models,
        clusters=lambda: tuple(dict.fromkeys([*run_state.clusters(), *shown_before])),
        limits=look.limits,
        recording=recording,
        readonly=readonly,
        in_browser=look.in_browser,
        captions=captions,
        when_drawn=startup.settle_collector,
        tick_s=tick_s(source),
    )
    return Dashboard(source, options, caller)


def _attached_or_asked(flag: str | None) -> str:
    """The cluster that `connect.attached` returns. If there are several and none was named, asks on
    the terminal. Raises RefusedError if the answer names none of them."""
    from controller.api.state import run_state

    there = run_state.clusters()
    if (
        (flag is not None and connect.is_url(flag))
        or config_file.named_cluster(flag) is not None
        or len(there) < 2
        or not (output.is_terminal(sys.stdin) and output.is_terminal(sys.stderr))
    ):
        return connect.attached(flag)
    there.sort(key=lambda name: (name != config_file.UNNAMED, name))
    output.say("several clusters are running:")
    width = max(map(len, there))
    for number, name in enumerate(there, start=1):
        output.say(f"  {number}  {name:<{width}}  {_cluster_state(name)}")
    output.say_on(f"which cluster? [1: {there[0]}] ")
    found = chosen(sys.stdin.readline(), there)
    meant.cluster_is(found)
    return found


def chosen(answer: str, there: list[str]) -> str:
    """The cluster that an answer names by its number or its name. An empty line means the first
    one; end of input means none."""
    word = answer.strip()
    if answer.endswith("\n") and not word:
        return there[0]
    if word.isdecimal() and 0 < int(word) <= len(there):
        return there[int(word) - 1]
    if word in there:
        return word
    raise RefusedError(
        f"{printable(word[:40])!r} is none of {', '.join(there)}",
        f"llumctl top --cluster {there[0]}",
    )


def _cluster_state(name: str) -> str:
    try:
        with connect.client(name, ASK_TIMEOUT_S, model="") as client:
            found = client.status()
    except LlumctlError:
        return "its controller does not answer"
    return (
        f"{found.state}  {len(found.instances)} instances of {printable(found.model)}"
        f"  {found.endpoint_url}"
    )


def _run(app: "Dashboard") -> None:
    """Runs until the operator leaves. Threads that still ask a controller are not waited for."""
    app.run()
    # At its end the interpreter collects all garbage. With this many objects that takes 0.2 s of
    # CPU, and seconds on a busy machine. Frozen objects are left out.
    gc.freeze()
    for told in app.session.unsettled():
        output.say(told)
    if app.return_code:
        raise typer.Exit(app.return_code)
    if app.session.state.stopped is not None:
        output.say(app.session.state.stopped.reason)


def _has_glyphs() -> bool:
    """Whether the terminal shows characters beyond ASCII. LC_ALL is looked at first, because with
    LC_ALL=C Python uses UTF-8 for its streams nevertheless."""
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        return False
    encoding = (sys.stderr.encoding or "").lower().replace("-", "")
    return encoding == "utf8" and os.environ.get("TERM") not in NO_GLYPHS
