"""How the controller carries out orders about LoRA adapters."""

import asyncio
from collections.abc import Sequence

from controller.adapters.http.calls import ApiError
from controller.adapters.http.cluster_view import adapter_in_use_on
from controller.adapters.http.perform import Deed, Handler, Operated, Operation, Values
from controller.api.errors import UsageError
from controller.api.operations.on_adapters import (
    LIST,
    AdapterReport,
    LoadAdapter,
    LoadAdapterRequest,
    UnloadAdapter,
    UnloadAdapterRequest,
)
from controller.api.operations.order import Wanted
from controller.api.operations.table import Undo
from controller.core.fleet.adapters import Adapter
from controller.runtime.controller.queries import Found


class _AdapterHandler(Handler[Wanted, AdapterReport]):
    adapter: Adapter
    changes = True

    def deeds(self) -> Sequence[Deed]:
        return ((self.order.deed, self.adapter.name),) if self.changes else ()

    async def plan(self) -> AdapterReport:
        return (await self.report()).model_copy(update={"dry_run": True})

    async def report(self) -> AdapterReport:
        adapter = self.adapter
        return AdapterReport(
            name=adapter.name,
            path=adapter.path,
            digest=adapter.digest,
            rank=adapter.rank,
            number=adapter.number,
            changes=self.changes,
            in_use_on=adapter_in_use_on(self.controller, adapter.number),
            revision=self.controller.keeper.revision,
        )


class LoadAdapterHandler(_AdapterHandler[LoadAdapterRequest]):
    row = LoadAdapter

    async def prepare(self) -> None:
        """Checks the files, which may take seconds."""
        wanted = self.wanted
        self.operated.check_running()
        try:
            facts = await asyncio.to_thread(self.operated.check_adapter, wanted.name, wanted.path)
        except UsageError as error:
            raise ApiError(400, "bad_adapter", error.message, error.hint) from error
        if wanted.digest not in ("", facts.digest):
            what = f"the files of {wanted.path} have changed: SHA-256 {facts.digest}"
            raise ApiError(409, "other_digest", what, f"llumctl lora load {wanted.name} PATH")
        self.adapter = Adapter(wanted.name, 0, wanted.path, facts.digest, facts.rank)

    async def look(self) -> None:
        """A load whose answer was lost may be sent again, although it has changed the revision."""
        known = self.controller.keeper.spec.adapter(self.wanted.name)
        self.changes = known is None or not _same(known, self.adapter)
        if self.changes:
            self.check()
        elif known is not None:
            self.adapter = known

    def check(self) -> None:
        self.operated.check_revision(self.wanted.if_revision)
        name = self.wanted.name
        if (known := self.controller.keeper.spec.adapter(name)) is not None:
            what = f"{name} is another adapter now, of {known.path} with SHA-256 {known.digest}"
            raise ApiError(409, "adapter_exists", what, f"llumctl lora unload {name}")

    async def carry_out(self, operation: Operation) -> None:
        wanted, keeper = self.adapter, self.controller.keeper
        spec = keeper.spec.with_adapter(wanted.name, wanted.path, wanted.digest, wanted.rank)
        keeper.change(spec)
        self.adapter = spec.adapters[-1]
        made: Values = {"name": wanted.name, "number": self.adapter.number}
        operation.undo = self.undone_by({"name": wanted.name}, made)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        name = undo.made["name"]
        taken = operated.controller.keeper.spec.adapter(str(name))
        return "" if taken is None else f"{name} is another adapter by now"


class UnloadAdapterHandler(_AdapterHandler[UnloadAdapterRequest]):
    row = UnloadAdapter

    def check(self) -> None:
        self.operated.check_revision(self.wanted.if_revision)
        name = self.wanted.name
        known = self.controller.keeper.spec.adapter(name)
        if known is None:
            raise ApiError(404, "no_adapter", f"there is no LoRA adapter {name}", LIST)
        self.adapter = known

    async def carry_out(self, operation: Operation) -> None:
        adapter, keeper = self.adapter, self.controller.keeper
        keeper.change(keeper.spec.without_adapter(adapter.name))
        operation.undo = self.undone_by(
            {"name": adapter.name, "path": adapter.path, "digest": adapter.digest},
            {"name": adapter.name},
        )

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        name = undo.made["name"]
        now = operated.controller.keeper.spec.adapter(str(name))
        same = now is not None and now.number == undo.made["number"]
        return "" if same else f"{name} is unloaded, or another adapter, by now"


HANDLERS = (LoadAdapterHandler, UnloadAdapterHandler)


def _same(one: Adapter, other: Adapter) -> bool:
    return (one.path, one.digest) == (other.path, other.digest)
