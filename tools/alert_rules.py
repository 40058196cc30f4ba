"""Writes the alert rules for Prometheus, `examples/prometheus-rules.yml`, and the page that says
what to do about each, `docs/runbooks.md`: `make reference`.

Both come from RUNBOOKS, a row for each word of the verdict (`controller/core/record/verdict.py`).
Nobody edits the two files by hand; a unit test compares them with the rows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from controller.core.record.verdict import Word

ROOT = Path(__file__).parents[1]
RULES = ROOT / "examples" / "prometheus-rules.yml"
PAGE = ROOT / "docs" / "runbooks.md"
KEEPS_FIRING_FOR = "2m"
"""A word may come again soon after it has gone. The alert stays up between the two, so that people
are called once."""
JOB = "llumctl-controller"
"""The job of the controllers in examples/prometheus.yml."""


@dataclass(frozen=True)
class Runbook:
    """`title`: the word, or what stands for it. `means`, `look` and `do` are Markdown; each line of
    the latter two is an item of a list. `severity` and `after` are those of the alert, which is
    raised when the cluster has been so for that long; without them there is no alert."""

    title: str
    means: str
    look: tuple[str, ...]
    do: tuple[str, ...]
    severity: Literal["", "warning", "critical"] = ""
    after: str = ""
    expr: str = ""
    """What Prometheus asks; empty for the word of the verdict."""

    @property
    def alert(self) -> str:
        return "Llumctl" + "".join(each.capitalize() for each in self.title.split())

    @property
    def link(self) -> str:
        """The section of the page, with an anchor as GitHub makes them."""
        anchor = re.sub(r"[^\w -]", "", self.title).lower().replace(" ", "-")
        return f"{PAGE.relative_to(ROOT)}#{anchor}"

    @property
    def query(self) -> str:
        return self.expr or f'llumctl_verdict{{word="{self.title}"}} == 1'


RUNBOOKS = (
    Runbook(
        "no answer",
        "Prometheus gets no answer from the controller, so nobody watches the cluster. Streams go"
        " on without a controller, and frontends choose instances by themselves.",
        (
            "`llumctl status` says whether a controller runs (exit code 3: none does).",
            "`llumctl logs controller` has its last lines, also after its death.",
        ),
        (
            "Wait a moment: after a death Ray starts the next controller within 1 to 3 s.",
            "If `llumctl status` answers and Prometheus still gets nothing, compare the target and"
            " `credentials_file` in its configuration with [monitoring](monitoring.md).",
            "If the cluster was stopped, start it: `llumctl up`.",
        ),
        "critical",
        "1m",
        f'up{{job="{JOB}"}} == 0',
    ),
    Runbook(
        "degraded",
        "A member is missing (failed, stalled or restarting), or no process can be started. The"
        " others serve on, with less room.",
        (
            "`llumctl status` names the member and why it is so.",
            "`llumctl events --kind instance_died,instance_stalled` says what happened before.",
            "`llumctl logs i-3` has the traceback of an instance that could not start.",
        ),
        (
            "`restarting`: wait. The next process starts by itself.",
            "`stalled`: `llumctl restart i-3 --now`; its requests go on elsewhere.",
            "`failed`: correct what its log says, then `llumctl restart i-3`.",
            "No process can be started: [Ray's head](reliability.md#rays-head) is gone.",
        ),
        "critical",
        "2m",
    ),
    Runbook(
        "overloaded",
        "Requests wait for more than 5 s, and the instances together have no memory or no time for"
        " them.",
        (
            "`llumctl status`: how many wait, for how long, and whether memory (KV near 100%) or"
            " computing (the backlog) is short.",
            "`llumctl requests --state waiting` lists those that wait. Does one client send most of"
            " them?",
        ),
        (
            "Add an instance: `llumctl scale +1`, or let [auto-scaling](autoscaling.md) do it.",
            "If there is no machine for it, bound the queue"
            " ([overload](endpoint.md#overload)) or a client"
            " ([limits of a key](endpoint.md#limits-of-a-key)).",
            "If it comes each day, [plan for it](capacity.md).",
        ),
        "critical",
        "2m",
    ),
    Runbook(
        "short of memory",
        "Running requests lose their KV blocks again and again, and are computed again later."
        " Nobody waits for long yet, but work is lost, and streams pause.",
        (
            "`llumctl events --kind evicted --since 5m`: on which instances?",
            "`llumctl status`: KV of all instances, or of one?",
        ),
        (
            "All are full: `llumctl scale +1`.",
            "One is full: `llumctl set migration.enabled=true` if moves are off, so that its"
            " requests move to others.",
            "Requests with very long answers: give their level a headroom"
            " ([priorities](priorities.md)).",
        ),
        "warning",
        "5m",
    ),
    Runbook(
        "fragmented",
        "A request has waited for more than 5 s. All instances together have the blocks that it"
        " needs, but no instance alone has them.",
        (
            "`llumctl requests --state waiting`, then `llumctl requests REQUEST`: what it needs,"
            " and where the room is.",
            "`llumctl events --kind not_moved --since 5m`: why others do not move out of its way.",
        ),
        (
            "`llumctl set migration.enabled=true` if moves are off.",
            "Make room by hand: `llumctl migrate REQUEST --to i-1` for a long request beside it.",
            "`llumctl scale +1`: a new instance has all its memory in one place.",
        ),
        "warning",
        "2m",
    ),
    Runbook(
        "unbalanced",
        "A request has waited for more than 5 s on one instance, and another instance alone has"
        " room for it.",
        (
            "`llumctl set migration.enabled`: may requests move?",
            "`llumctl requests REQUEST`: why it is where it is, and why it does not move.",
            "`llumctl status`: is the instance reserved for a level with headroom? Do most of its"
            " requests have that level?",
        ),
        (
            "Let requests move: `llumctl set migration.enabled=true`.",
            "Move this one: `llumctl migrate REQUEST --to i-1`.",
            "If a level has too many requests, give some a lower one"
            " (`llumctl priority REQUEST normal`), or the level a smaller headroom"
            " ([priorities](priorities.md)).",
        ),
        "warning",
        "5m",
    ),
    Runbook(
        "slow",
        "The steps of an instance take at least three times as long as those of the others, a move"
        " has taken more than 15 s, or a drain is past its deadline.",
        (
            "`llumctl status -o wide` names the machine of the instance.",
            "On that machine: is a GPU throttled, does another process compute, is the network"
            " slow?",
        ),
        (
            "A slow instance: `llumctl drain i-3` moves its requests to the others;"
            " `llumctl uncordon i-3` takes that back.",
            "A late drain: [its moves](troubleshooting.md#moves-and-drains-make-no-progress) say"
            " why; often there is no room: `llumctl scale +1`.",
            "A slow link: `llumctl cordon i-4` keeps requests and moves away from that instance.",
            "`llumctl set scheduler.slow_factor=2` drains slow instances by itself.",
        ),
        "warning",
        "5m",
    ),
    Runbook(
        "starting",
        "The cluster has not served yet: its first instances load the model or compile it.",
        (
            "`llumctl status` says how many serve.",
            "`llumctl logs i-0 -f` shows what an instance does.",
        ),
        (
            "Wait: a large model takes minutes.",
            "`llumctl doctor` looks for what is missing on the machine.",
        ),
        "warning",
        "15m",
    ),
    Runbook(
        "stopping",
        "The cluster is being stopped: running requests may finish, and new ones are refused.",
        ("`llumctl events --kind operator` says who stopped it, and when.",),
        ("`llumctl down --now` does not wait for running requests.",),
        "warning",
        "15m",
    ),
    Runbook(
        "recovering",
        "The trouble is over. Figures of the last minute, such as the P99 TTFT, still show it. Or"
        " the controller came back a moment ago.",
        ("`llumctl events --kind verdict` says what the trouble was and how long it lasted.",),
        ("Nothing: wait a minute.",),
    ),
    Runbook(
        "ok",
        "None of the other words holds.",
        ("`llumctl status` has the figures.",),
        ("Nothing.",),
    ),
)


def rules() -> dict[str, Any]:
    """The rules as values."""
    found = [
        {
            "alert": each.alert,
            "expr": each.query,
            "for": each.after,
            "keep_firing_for": KEEPS_FIRING_FOR,
            "labels": {"severity": each.severity},
            "annotations": {
                "summary": f"llumctl cluster {{{{ $labels.cluster }}}}: {each.title}",
                "description": each.means,
                "runbook": each.link,
            },
        }
        for each in RUNBOOKS
        if each.severity
    ]
    return {"groups": [{"name": "llumctl", "rules": found}]}


def rules_text() -> str:
    text = yaml.safe_dump(rules(), sort_keys=False, width=96, allow_unicode=True)
    head = (
        "# Alerts for Prometheus (2.42 or newer), by the word that `llumctl status` says.",
        "# docs/monitoring.md says how to use them, docs/runbooks.md what to do about each.",
        "# `make reference` writes this file from tools/alert_rules.py.",
    )
    return "\n".join(head) + "\n\n" + text


def page_text() -> str:
    assert {each.title for each in RUNBOOKS if not each.expr} == set(Word)
    return "\n\n".join(_parts()) + "\n"


def _parts() -> Iterator[str]:
    yield "# Runbooks"
    yield (
        "`make reference` writes this page, and the [alert rules](../examples/prometheus-rules.yml)"
        " for Prometheus, from `tools/alert_rules.py`."
    )
    yield (
        "Each section is about one word of the verdict, which `llumctl status` and the console say"
        " first. The worst word that holds is said. [Monitoring](monitoring.md#alerts) says how"
        " Prometheus gets the rules. [Troubleshooting](troubleshooting.md) begins with symptoms"
        " instead."
    )
    rows = [
        (f"[{each.title}](#{each.link.partition('#')[2]})", each.alert, each.severity, each.after)
        if each.severity
        else (f"[{each.title}](#{each.link.partition('#')[2]})", "", "", "")
        for each in RUNBOOKS
    ]
    head = ("word", "alert", "severity", "raised after")
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ("---",) * 4, *rows))
    for each in RUNBOOKS:
        yield f"## {each.title}"
        yield each.means
        yield "What to look at:"
        yield "\n".join(f"- {line}" for line in each.look)
        yield "What to do:"
        yield "\n".join(f"- {line}" for line in each.do)


def write() -> None:
    RULES.write_text(rules_text(), encoding="utf-8")
    PAGE.write_text(page_text(), encoding="utf-8")
