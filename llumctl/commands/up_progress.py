"""What `up` shows while instances start, and how to reach the endpoint once they have.

On a terminal the instances are redrawn in place until the cluster is ready; elsewhere, and
afterwards, every change is one line on stderr. The endpoint goes to stdout.
"""

import json
import shlex
import sys
from typing import TYPE_CHECKING, Self

from controller.api.settings.settings import Settings
from controller.api.text.quantities import printable
from controller.api.wire.status import (
    ClusterState,
    ClusterStatus,
    FrontendStatus,
    InstanceState,
    InstanceStatus,
)
from llumctl import meant
from llumctl.text import output

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

STOPPING = "the cluster is being stopped"

_GLYPHS = {
    InstanceState.STARTING: "+",
    InstanceState.ACTIVE: "*",
    InstanceState.FAILED: "!",
    InstanceState.STALLED: "!",
    InstanceState.STOPPING: ">",
}


class Progress:
    """Call it with each status (or a sentence) in turn; from one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[str, str] = {}
        self._announced = False
        self._live: Live | None = None
        self._redraws = output.can_redraw(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_drawing()

    def __call__(self, news: ClusterStatus | str) -> None:
        if isinstance(news, str):
            self._say(news)
            return
        if self._redraws and not self._announced:
            self._draw(news)
        else:
            self._say_changes(news)
        if is_up(news):
            self.announce(news)

    def announce(self, status: ClusterStatus) -> None:
        """Once: the endpoint's URL and a request to try, on stdout."""
        if self._announced:
            return
        self._announced = True
        self._stop_drawing()
        self._seen.update((item.id, _state(item)) for item in _members(status))
        if status.state is ClusterState.STARTING:
            output.say("still starting: llumctl status tells when it is ready")
        output.emit(endpoint_text(self._settings, status))

    def _say(self, text: str) -> None:
        if self._live is None:
            output.say(text)
        else:
            self._live.console.print(meant.aimed(text), markup=False, highlight=False)

    def _say_changes(self, status: ClusterStatus) -> None:
        if status.state is ClusterState.STOPPING:
            # Its members go one after the other, which is no news and no restart.
            if self._seen.get(STOPPING) is None:
                self._seen[STOPPING] = "told"
                output.say(STOPPING)
            return
        for item in _members(status):
            now = _state(item)
            if self._seen.get(item.id) != now:
                self._seen[item.id] = now
                output.say(f"{item.id}: {now}")

    def _draw(self, status: ClusterStatus) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False)
            self._live.start()
        self._live.update(_picture(status), refresh=True)

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def is_up(status: ClusterStatus) -> bool:
    """Ready, or as ready as it gets: some instances serve although others could not start."""
    serving = any(item.state is InstanceState.ACTIVE for item in status.instances)
    return status.state is ClusterState.READY or (status.state is ClusterState.DEGRADED and serving)


def endpoint_text(settings: Settings, status: ClusterStatus) -> str:
    """The URL on the first line, then a curl line. A key is read from its file by the shell."""
    base = status.endpoint_url.rstrip("/").removesuffix("/v1")
    body = {
        "model": next(iter(settings.endpoint.served_model_name), status.model),
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 32,
    }
    words = [f"curl {shlex.quote(f'{base}/v1/chat/completions')}"]
    if settings.endpoint.ssl_certfile:
        words.append(f"--cacert {shlex.quote(settings.endpoint.ssl_certfile)}")
    if settings.endpoint.api_key_file:
        key_file = shlex.quote(settings.endpoint.api_key_file)
        script = "/./{s/[[:space:]].*//;s/^/Authorization: Bearer /p;q}"
        words.append(f"-H @<(sed -n {shlex.quote(script)} {key_file})")
    words.append("-H 'Content-Type: application/json'")
    words.append(f"-d {shlex.quote(json.dumps(body))}")
    return f"{base}/v1\n{' '.join(words)}"


def _members(status: ClusterStatus) -> tuple[InstanceStatus | FrontendStatus, ...]:
    return (*status.instances, *status.frontends)


def _state(item: InstanceStatus | FrontendStatus) -> str:
    return f"{item.state} ({item.detail})" if item.detail else str(item.state)


def _picture(status: ClusterStatus) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for item in _members(status):
        cells = (_GLYPHS.get(item.state, " "), item.id, item.state, item.detail)
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table
