"""Ids for the shell's completion, asked of the controller each time: what there is changes.

A shell waits for each Tab, so nothing that takes long is imported, and a controller that is slow or
absent gives no ids. Nothing is ever said: a message would stand in the line that is typed. A
cluster that is known by its URL is not asked, as the token may be on another machine.
"""

import json
from collections.abc import Iterator
from typing import Any

from typer import Context

TIMEOUT_S = 0.15
MAX_BYTES = 8 << 20
MAX_REQUESTS = 200
LIVE = ("dispatching", "waiting", "running", "evicted")
"""`LIVE_STATES` of controller/api/wire/requests.py, whose import takes longer than an answer."""


def instances(context: Context, incomplete: str) -> list[tuple[str, str]]:
    """With each id what `status` says of it; shells that show no help leave it out."""
    found = _asked(context, "status").get("instances", ())
    return _beginning(incomplete, context, ((item["id"], item["state"]) for item in found))


def members(context: Context, incomplete: str) -> list[tuple[str, str]]:
    found = _asked(context, "status")
    items = (*found.get("instances", ()), *found.get("frontends", ()))
    named = [(item["id"], item["state"]) for item in items]
    others = [("controller", "the default"), ("head", "Ray and the sockets")]
    return _beginning(incomplete, context, iter(named + others))


def requests(context: Context, incomplete: str) -> list[tuple[str, str]]:
    states = "".join(f"&state={state}" for state in LIVE)
    found = _asked(context, f"requests?limit={MAX_REQUESTS}{states}").get("requests", ())
    rows = ((item["id"], f"{item['state']} at {item.get('instance_id') or '-'}") for item in found)
    return _beginning(incomplete, context, rows)


def _beginning(
    incomplete: str, context: Context, rows: Iterator[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Those that begin so, without those that the command line has already."""
    lists = [value for value in context.params.values() if isinstance(value, (list, tuple))]
    given = {each for value in lists for each in value}
    try:
        return [row for row in rows if row[0].startswith(incomplete) and row[0] not in given]
    except (KeyError, TypeError):
        return []


def _asked(context: Context, path: str) -> dict[str, Any]:
    import urllib.request  # only here: every command imports this module

    from controller.api.errors import LlumctlError
    from controller.api.state import run_state
    from llumctl import connect

    try:
        cluster = connect.attached(context.params.get("cluster"))
        state = None if connect.is_url(cluster) else run_state.load(cluster)
        if state is None:
            return {}
        request = urllib.request.Request(
            f"{state.control_url}/v1/{path}",
            headers={"Authorization": f"Bearer {state.control_token}"},
        )
        # Without the proxies of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            found = json.loads(answer.read(MAX_BYTES))
    except (OSError, ValueError, LlumctlError):
        return {}
    return found if isinstance(found, dict) else {}
