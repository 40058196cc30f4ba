"""How the controller attaches servers that somebody else started, and detaches them."""

import asyncio
import time
from collections.abc import Sequence

from controller.adapters.http.calls import ApiError
from controller.adapters.http.cluster_view import attached_status
from controller.adapters.http.instance_orders import EmptyingHandler
from controller.adapters.http.perform import Deed, Handler, Operated, Operation
from controller.api.errors import UsageError
from controller.api.operations.on_attached import (
    Attach,
    AttachReport,
    AttachRequest,
    Detach,
    DetachRequest,
)
from controller.api.operations.on_instances import DrainReport
from controller.api.operations.table import Undo
from controller.core.bounds import MAX_INSTANCES
from controller.core.emptying.claims import Remove
from controller.core.fleet.attached import AttachedServer, ServerAsked
from controller.core.fleet.cluster_spec import emptying_refusal
from controller.runtime.controller.queries import Found


class AttachHandler(Handler[AttachRequest, AttachReport]):
    row = Attach
    server: AttachedServer
    instance_id = ""
    changes = True

    async def prepare(self) -> None:
        """Asks the server, which may take seconds."""
        wanted, controller = self.wanted, self.controller
        self.operated.check_launcher()
        lengths = [
            member.said.info.max_model_len
            for member in controller.roster.instances()
            if member.said.info and member.member_id not in controller.keeper.spec.attached
        ]
        forwards = controller.keeper.spec.attached_only
        if not lengths and not forwards:
            what = "no instance of the cluster has started yet, so the server cannot be compared"
            raise ApiError(409, "not_ready", what, "llumctl status")
        asked = ServerAsked(
            wanted.url, wanted.key_file, wanted.capacity_tokens, wanted.other_model, forwards
        )
        longest = min(lengths, default=0)
        try:
            self.server = await asyncio.to_thread(self.operated.check_server, asked, longest)
        except UsageError as error:
            raise ApiError(400, "bad_server", error.message, error.hint) from error

    async def look(self) -> None:
        """An order whose answer was lost may be sent again, although it changed the revision."""
        attached = self.controller.keeper.spec.attached
        known = [key for key, each in attached.items() if each.url == self.server.url]
        self.changes = not known
        if known:
            self.instance_id, self.server = known[0], attached[known[0]]
        else:
            self.check()

    def check(self) -> None:
        self.operated.check_revision(self.wanted.if_revision)
        spec = self.controller.keeper.spec
        if len(spec.instance_ids) >= MAX_INSTANCES:
            what = f"the cluster has {MAX_INSTANCES} instances, which are the most"
            raise ApiError(400, "max_instances", what)
        self.instance_id = f"i-{self.controller.keeper.next_instance}"

    def deeds(self) -> Sequence[Deed]:
        return ((f"attach {self.server.url}", self.instance_id),) if self.changes else ()

    async def carry_out(self, operation: Operation) -> None:
        keeper = self.controller.keeper
        keeper.change(keeper.spec.with_attached(self.server, keeper.next_instance))
        undo = self.undone_by()
        operation.undo = undo.model_copy(update={"target": self.instance_id})
        self.controller.scaling.launch_missing()

    async def plan(self) -> AttachReport:
        return (await self.report()).model_copy(update={"dry_run": True})

    async def report(self) -> AttachReport:
        server = attached_status(self.server)
        assert server is not None
        return AttachReport(
            instance_id=self.instance_id,
            server=server,
            changes=self.changes,
            revision=self.controller.keeper.revision,
        )


class DetachHandler(EmptyingHandler[DetachRequest]):
    row = Detach

    @property
    def claim(self) -> Remove:
        return Remove("", time.time(), reason=self.wanted.reason)

    async def look(self) -> None:
        await super().look()
        self.changes = self.would_change(self.claim)

    def check(self) -> None:
        self.check_instance(self.wanted.if_revision)
        spec, going = self.controller.keeper.spec, [self.instance_id]
        if self.instance_id not in spec.attached:
            what = f"{self.instance_id} is an instance of the cluster's own, and not attached"
            raise ApiError(409, "not_attached", what, f"llumctl drain {self.instance_id} --remove")
        schedulable = self.controller.drains.schedulable_ids()
        refusal = emptying_refusal(spec, going, schedulable, force=self.wanted.force)
        self.refuse(refusal, going, "detach {} --force")

    async def plan(self) -> DrainReport:
        return await self.reports.planned(self.instance_id, self.claim)

    async def carry_out(self, operation: Operation) -> None:
        self.begin(self.claim, operation)

    @classmethod
    def why_not(cls, operated: Operated, entry_id: str, undo: Undo, known: Found) -> str:
        attached = operated.controller.keeper.spec.attached
        return "" if undo.target in attached else f"{undo.target} is detached already"


HANDLERS = (AttachHandler, DetachHandler)
