"""Finds the controller of a cluster and follows its streams. A local cluster is found by its name,
a remote one by a URL, to which usually a tunnel leads."""

import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from controller.api.errors import (
    LlumctlError,
    NotRunningError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from controller.api.text.quantities import printable
from llumctl import meant, output

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.state.run_state import RunState
    from controller.api.wire.stream import Frame, TrafficBatch, TrafficRequest

DEFAULT_TIMEOUT_S = 5.0
TOKEN, TOKEN_FILE = "LLUMCTL_TOKEN", "LLUMCTL_TOKEN_FILE"
TUNNEL_HINT = "ssh -fNL 8700:127.0.0.1:8700 HOST      if the tunnel is down"
TOKEN_HINT = f"{TOKEN_FILE}=FILE llumctl ... --cluster URL"


def attached(flag: str | None) -> str:
    """Returns which cluster a command is about: the cluster of `--cluster` (a name or a URL), if it
    is given; otherwise the cluster that the environment or the config file names; otherwise
    `default`, if it runs or none does; otherwise the only cluster there is. From here on, commands
    in messages name this cluster too.

    Raises:
        NotRunningError: there are several clusters, none is `default`, and none was named.
        UsageError: the flag is neither a name nor the URL of a control API.
    """
    found = _attached(flag)
    meant.cluster_is(found)
    return found


def _attached(flag: str | None) -> str:
    from controller.api.state import run_state
    from llumctl.config import config_file

    if flag is not None and is_url(flag):
        return _checked(flag)
    if (named := config_file.named_cluster(flag)) is not None:
        return named
    there = run_state.clusters()
    if config_file.UNNAMED in there or not there:
        return config_file.UNNAMED
    if len(there) > 1:
        raise NotRunningError(
            f"there are several clusters, and none was named: {', '.join(there)}",
            "      or      ".join(f"llumctl status --cluster {name}" for name in there[:3]),
        )
    return there[0]


def is_url(cluster: str) -> bool:
    return "://" in cluster


def client(
    cluster: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    *,
    model: str | None = None,
    through: str = "",
    view: bool = False,
) -> "ControlClient":
    """A client for a cluster that `attached` returned. The run state or the token's file is read
    each time, because a cluster that was started again has another token. `model`: the model that
    the calls are about, or empty; None: the model that this command is about. `through`: by which
    program the user acts, for the audit log. `view`: the client of a local cluster gets the token
    that may read and give no orders.

    Raises NotRunningError, UsageError.
    """
    of_model = meant.model() if model is None else model
    if is_url(cluster):
        token = _token()
        from controller.api.client import ControlClient

        return ControlClient(
            cluster,
            token,
            timeout_s,
            unreachable_hint=TUNNEL_HINT,
            through=through,
            model=of_model,
        )
    state = running(cluster)
    from controller.api.client import UNREACHABLE_HINT, ControlClient
    from controller.api.state import run_state

    hint = UNREACHABLE_HINT
    if run_state.is_being_changed(cluster):
        hint = "llumctl status --wait=ready      as another command starts or stops it now"
    token = run_state.view_token(cluster) if view else state.control_token
    return ControlClient(
        state.control_url,
        token,
        timeout_s,
        unreachable_hint=hint,
        through=through,
        model=of_model,
    )


def check(cluster: str) -> None:
    """Raises NotRunningError if a local cluster was stopped. For a remote cluster nothing is
    checked: only a call can tell whether it runs."""
    if not is_url(cluster):
        running(cluster)


def running(cluster: str) -> "RunState":
    """The run state. Raises NotRunningError, and RefusedError if only the cluster's URL is
    known."""
    from controller.api.state import run_state

    if is_url(cluster):
        raise RefusedError(
            "this needs the cluster's files, and only its URL is known",
            "ssh HOST llumctl ...      with the cluster's name",
        )
    state = run_state.load(cluster)
    if state is None:
        if run_state.is_being_changed(cluster):
            raise NotRunningError(
                f"cluster {cluster} is being started", "llumctl status --wait=ready"
            )
        from controller.api.state.audit import last_stop

        stop = last_stop(cluster)
        told = "" if stop is None else f": it was stopped at {stop.words()}"
        others = [f"llumctl status --cluster {name}" for name in run_state.clusters()]
        raise NotRunningError(
            f"cluster {cluster} is not running{told}",
            "      or      ".join(["llumctl up", *others[:3]]),
        )
    return state


def _checked(url: str) -> str:
    """Returns the URL if the token may be sent to it: the token never goes unencrypted over a
    network. Messages do not repeat the whole URL, as somebody may have written a password into
    it."""
    from controller.api.hosts import is_loopback

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
        raise UsageError(
            "--cluster: the URL of a control API looks like http://127.0.0.1:8700",
            "llumctl status --cluster http://127.0.0.1:8700",
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(
            f"--cluster: the URL ends with the port: {parts.scheme}://{parts.netloc}",
            f"llumctl status --cluster {parts.scheme}://{parts.netloc}",
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise UsageError(
            f"--cluster: the token would go to {host} unencrypted",
            f"ssh -L 8700:127.0.0.1:8700 {host}      and      --cluster http://127.0.0.1:8700",
        )
    return f"{parts.scheme}://{parts.netloc}"


def _token() -> str:
    """The token of the environment, or of the file that the environment names. The file contains
    just a token, or is a cluster's run.json."""
    if token := os.environ.get(TOKEN, "").strip():
        return _plain(token, TOKEN)
    if not (named := os.environ.get(TOKEN_FILE)):
        raise UsageError(
            f"a cluster that is known by its URL needs a token: set {TOKEN_FILE}, or {TOKEN}",
            TOKEN_HINT,
        )
    from llumctl.config import config_file

    try:
        text = config_file.read_secret(Path(named), TOKEN_FILE)
    except UsageError as error:
        chmod = error.hint if error.hint.startswith("chmod") else TOKEN_HINT
        raise UsageError(error.message, chmod) from error
    if not text.startswith("{"):
        return _plain(text, TOKEN_FILE)
    from controller.api.state.run_state import RunState

    try:
        return _plain(RunState.from_json(text).control_token, TOKEN_FILE)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{TOKEN_FILE}: {named} is not a run.json: {error}", TOKEN_HINT) from error


def _plain(text: str, where: str) -> str:
    """Returns the text if it can be a token: it has no blanks and no line ends. The message does
    not repeat a wrong text, which may be another secret."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{where}: this is not a token", TOKEN_HINT)
    return text


# -- streams, across lost connections and new controllers ---------------------------------

WAIT_S = 0.2
RETRY_S = 0.5
MAX_HEARD = 4096


def follow(
    cluster: str, after: str, *, status_every_s: float | None = None, patient: bool = False
) -> Iterator["Frame | None"]:
    """Yields the frames after a position as they come, without end, and None whenever WAIT_S passes
    without a frame.

    A lost connection does not end the stream: its loss and its return are reported on stderr, once
    each. With `patient` a refusal does not end the stream either.

    Raises:
        NotRunningError: the cluster was stopped.
        LlumctlError: the controller answered with a refusal.
    """
    from controller.api.client import Follower, Lost

    heard: queue.Queue[Frame | Lost] = queue.Queue(MAX_HEARD)
    follower = Follower(
        lambda: client(cluster), heard.put, after=after, status_every_s=status_every_s
    )
    follower.start()
    in_trouble = False
    try:
        while True:
            try:
                item = heard.get(timeout=WAIT_S)
            except queue.Empty:
                yield None
                continue
            if isinstance(item, Lost):
                _raise_what_lasts(item.error, cluster, patient=patient)
                if not in_trouble:
                    output.say(f"{printable(item.error.message)}; trying again")
                in_trouble = True
                continue
            if in_trouble:
                output.say("the controller answers again")
                in_trouble = False
            yield item
    finally:
        follower.stop()


def _raise_what_lasts(error: LlumctlError, cluster: str, *, patient: bool) -> None:
    if isinstance(error, NotRunningError) or not (patient or isinstance(error, UnreachableError)):
        raise error
    check(cluster)


def traffic(cluster: str, wanted: "TrafficRequest") -> Iterator["TrafficBatch | None"]:
    """Yields the batches as they come, at least one per second, without end, and None whenever the
    connection is lost.

    Batches that the caller has not taken wait at the controller. The loss of the connection and its
    return are reported on stderr, once each.

    Raises:
        NotRunningError: the cluster was stopped.
        UnreachableError: the controller did not answer the first call.
        LlumctlError: the controller answered with a refusal.
    """
    was_heard = in_trouble = False
    while True:
        try:
            with client(cluster) as control:
                for batch in control.traffic(wanted):
                    if in_trouble:
                        output.say("the controller answers again")
                    was_heard, in_trouble = True, False
                    yield batch
        except UnreachableError as error:
            if isinstance(error, NotRunningError) or not was_heard:
                raise
            check(cluster)
            if not in_trouble:
                output.say(f"{printable(error.message)}; trying again")
            in_trouble = True
        yield None
        time.sleep(RETRY_S)
