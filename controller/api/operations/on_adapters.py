"""Orders about LoRA adapters, each with its body and its report.

The compatibility rules are those of `controller.api.wire`. `revision` counts the changes of the
cluster's spec.
"""

import shlex
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field

from controller.api.operations.order import (
    Controller,
    OnCluster,
    Order,
    Outcome,
    Plan,
    SpecOrderBody,
)
from controller.api.settings import ADAPTER_NAME
from controller.api.wire import AnswerModel, SettingValue

SHOWN_DIGITS = 12
"""How many digits of a digest people see."""

AdapterName = Annotated[str, Field(pattern=ADAPTER_NAME)]
LIST = "llumctl lora list"


class LoadAdapterRequest(SpecOrderBody):
    """Loads a LoRA adapter on all instances; clients name it as a model. The answer comes before
    the instances have it: the status tells which ones do."""

    name: AdapterName
    path: str = Field(min_length=1, max_length=4096, pattern="^/")
    """The folder with the adapter's files, on every machine of the cluster."""
    digest: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    """The SHA-256 that the files must have; empty: whatever they have now."""


class UnloadAdapterRequest(SpecOrderBody):
    """Takes a LoRA adapter away. New requests that name it get 404; the requests that have it go on
    until they end, and then the instances unload it."""

    name: AdapterName


class AdapterReport(AnswerModel):
    """`changes`: whether the order changes, or would change, anything. `in_use_on`: the instances
    with requests that have the adapter."""

    name: str
    path: str
    digest: str
    rank: int
    number: int = 0
    """The adapter's number; 0 in the plan of a load."""
    changes: bool = True
    in_use_on: tuple[str, ...] = ()
    dry_run: bool = False
    revision: int = 0

    @property
    def facts(self) -> str:
        """`sql (rank 16, 1f09c2ad11b3) of /models/sql`"""
        return f"{self.name} (rank {self.rank}, {self.digest[:SHOWN_DIGITS]}) of {self.path}"


Named = TypeVar("Named", LoadAdapterRequest, UnloadAdapterRequest)


class _OnAdapter(OnCluster[Named, AdapterReport]):
    report = AdapterReport
    wants_body = True

    @classmethod
    def bringing_back(cls, previous: Mapping[str, SettingValue]) -> Mapping[str, Any]:
        return previous

    @property
    def question(self) -> str:
        return f"{self.word} {self.wanted.name}?"


class LoadAdapter(_OnAdapter[LoadAdapterRequest]):
    kind, word = "load_adapter", "Load"
    does = "Load a LoRA adapter"
    usage = "llumctl lora load NAME PATH"
    path = "/v1/adapters"
    body = LoadAdapterRequest
    repeatable = True
    undone_by = "unload_adapter"

    @property
    def title(self) -> str:
        return f"lora load {shlex.quote(self.wanted.name)} {shlex.quote(self.wanted.path)}"

    @property
    def takes_s(self) -> float:
        """The controller reads all of the files, for their digest."""
        return 60.0

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        if not report.changes:
            return Plan((f"{report.facts} is loaded already",), None)
        return Plan((f"all instances load {report.facts}",), self.at(report.revision))

    def outcome(self, report: AdapterReport) -> Outcome:
        if not report.changes:
            return Outcome(f"{report.facts} is loaded already")
        return Outcome(f"all instances load {report.facts}", can_undo=True)


class UnloadAdapter(_OnAdapter[UnloadAdapterRequest]):
    kind, word = "unload_adapter", "Unload"
    does = "Unload a LoRA adapter"
    usage = "llumctl lora unload NAME"
    path = "/v1/adapters/unload"
    body = UnloadAdapterRequest
    undone_by = "load_adapter"

    @property
    def title(self) -> str:
        return f"lora unload {shlex.quote(self.wanted.name)}"

    def plan(self, client: Controller) -> Plan[Order[Any, Any]]:
        report = client.send(self.dry())
        return Plan(unload_words(report), self.at(report.revision))

    def outcome(self, report: AdapterReport) -> Outcome:
        return Outcome("; ".join(unload_words(report)), can_undo=True)


ORDERS: tuple[type[Order[Any, Any]], ...] = (LoadAdapter, UnloadAdapter)


def unload_words(report: AdapterReport) -> tuple[str, ...]:
    lines = [f"{report.facts} is offered no more; requests that wait for an instance are refused"]
    if report.in_use_on:
        there = ", ".join(report.in_use_on)
        lines.append(f"its requests on {there} go on; it is unloaded there when they have ended")
    return tuple(lines)
