"""Orders that attach servers which somebody else started, and detach them, each with its body and
its report.

The compatibility rules are those of `controller.api.wire`. `revision` counts the changes of the
cluster's spec.
"""

import shlex
from typing import Any

from pydantic import Field

from controller.api.operations.on_instances import DrainReport, EmptyingOrder
from controller.api.operations.order import (
    Awaited,
    Controller,
    End,
    OnCluster,
    Order,
    Outcome,
    Plan,
    SpecOrderBody,
)
from controller.api.wire import AnswerModel
from controller.api.wire.status import AttachedStatus

MAX_URL_CHARS = 1024
MAX_PATH_CHARS = 4096


class AttachRequest(SpecOrderBody):
    """Attaches a vLLM, SGLang or llama.cpp server as an instance whose requests never move. The
    server is asked for its model, its tokens and its memory first."""

    url: str = Field(min_length=8, max_length=MAX_URL_CHARS)
    key_file: str = Field(default="", max_length=MAX_PATH_CHARS, pattern="^(/.*)?$")
    """The file with the server's API key, on the controller's machine; empty: it wants none."""
    capacity_tokens: int = Field(default=0, ge=0, le=1 << 40)
    """How many tokens its KV cache holds; 0: the server is asked."""
    other_model: bool = False
    """Attaches it although its model has another name than the cluster's."""


class AttachReport(AnswerModel):
    """`changes`: false if this server is attached already, as `instance_id`. In a dry run
    `instance_id` is the id that the instance would get."""

    instance_id: str
    server: AttachedStatus
    changes: bool = True
    dry_run: bool = False
    revision: int = 0

    @property
    def facts(self) -> str:
        """`vllm server http://host:8000 with llama (4096 tokens a request, 90000 in all)`"""
        it = self.server
        sizes = f"{it.max_model_len} tokens a request, {it.capacity_tokens} in all"
        return f"{it.kind} server {it.url} with {it.model} ({sizes})"


class Attach(OnCluster[AttachRequest, AttachReport]):
    kind, word = "attach", "Attach"
    does = "Attach a server that somebody else started"
    usage = "llumctl attach URL"
    path = "/v1/attached"
    body = AttachRequest
    report = AttachReport
    wants_body = True
    repeatable = True
    undone_by = "detach"

    @property
    def title(self) -> str:
        return f"attach {shlex.quote(self.wanted.url)}"

    @property
    def question(self) -> str:
        return f"Attach {self.wanted.url}?"

    @property
    def takes_s(self) -> float:
        """The server is asked several things, and may be slow."""
        return 60.0

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        if not report.changes:
            return Plan((f"{report.facts} is attached already as {report.instance_id}",), None)
        return Plan((f"{report.facts} becomes {report.instance_id}",), self.at(report.revision))

    def outcome(self, report: AttachReport) -> Outcome:
        if not report.changes:
            return Outcome(f"{report.facts} is attached already as {report.instance_id}")
        awaits = (Awaited(report.instance_id, End.STARTED),)
        return Outcome(f"{report.facts} is {report.instance_id}", can_undo=True, awaits=awaits)


class DetachRequest(SpecOrderBody):
    """Detaches a server: it gets no new requests, and is forgotten once its requests have ended.
    The server itself goes on."""

    force: bool = False


class Detach(EmptyingOrder[DetachRequest]):
    kind, word = "detach", "Detach"
    does = "Detach a server once its requests have ended"
    usage = "llumctl detach ID"
    path = "/v1/instances/{instance_id}/detach"
    body = DetachRequest
    under_way = "is being detached"


ORDERS: tuple[type[Order[Any, Any]], ...] = (Attach, Detach)
__all__ = ["ORDERS", "Attach", "AttachReport", "AttachRequest", "Detach", "DrainReport"]
