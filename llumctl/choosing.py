"""Asks which of several clusters the dashboard is to show."""

import sys

from controller.api.errors import LlumctlError, RefusedError
from controller.api.text.quantities import printable
from llumctl import connect, meant
from llumctl.config import config_file
from llumctl.text import output

ASK_TIMEOUT_S = 1.0
"""For each of them: one that hangs must not hide the others."""


def attached_or_asked(flag: str | None) -> str:
    """What `connect.attached` says, unless there are several clusters, none was named, and somebody
    can be asked. Raises RefusedError if the answer names none of them."""
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
    output.say("several clusters are here:")
    width = max(map(len, there))
    for number, name in enumerate(there, start=1):
        output.say(f"  {number}  {name:<{width}}  {_state(name)}")
    output.say_on(f"which one? [1 is {there[0]}] ")
    found = chosen(sys.stdin.readline(), there)
    meant.cluster_is(found)
    return found


def chosen(answer: str, there: list[str]) -> str:
    """By its number or its name; an empty line is the first, an end of input is none."""
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


def _state(name: str) -> str:
    try:
        with connect.client(name, ASK_TIMEOUT_S) as client:
            found = client.status()
    except LlumctlError:
        return "its controller does not answer"
    return (
        f"{found.state}  {len(found.instances)} instances of {printable(found.model)}"
        f"  {found.endpoint_url}"
    )
