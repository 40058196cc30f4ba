"""Finds an instance for a new request: the frontend asks the controller until it answers.

When the controller is silent the frontend decides alone by the last known statuses
(scheduler-bypass, paper section 5), so that a dead controller fails no request: at once for each
request, or with late binding, where many may be waiting, as fast as they fit (`bypass`). While it
knows no instance that could take a request, the request waits as it would at the controller: the
next one is mostly there within seconds.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.core.dispatch.bypass import choose_without_controller
from controller.core.scheduler_events import (
    Dispatch,
    DispatchCancelled,
    DispatchRequested,
    Reject,
    RejectCode,
)
from controller.ports.mailbox import Mailbox
from controller.runtime.frontend.bypass import Bypass
from controller.runtime.frontend.key_limits import FrontendKeys
from controller.runtime.frontend.known_instances import KnownInstances
from controller.runtime.member import Membership
from controller.runtime.messages.codec import encode
from controller.runtime.messages.members import Directory, InstanceEntry
from controller.runtime.messages.requests import (
    DispatchAsked,
    DispatchUnused,
    DispatchWithdrawn,
)

# A live controller answers in well under 10 ms, or holds the request on purpose and keeps sending
# directories; it is bypassed when neither answers nor directories come for this long.
CONTROLLER_SILENCE_S = 1.0
# With late binding thousands may be held for minutes. A new controller is asked at once; this is
# for questions and answers that got lost.
MAX_ASK_AGAIN_S = 8.0
BYPASS_EVERY_S = 0.05
# A dispatch to an instance that is not listed is asked for again, after each of these: the death,
# or the start, is known to both sides soon.
GONE_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8)


class NotDispatchedError(Exception):
    """The cluster does not take this request. `retry_after_s`: when it may be tried again."""

    def __init__(self, code: RejectCode, retry_after_s: int = 1) -> None:
        super().__init__(code)
        self.code, self.retry_after_s = code, retry_after_s


@dataclass(slots=True)
class _Asked:
    request: DispatchRequested
    since_s: float
    answer: asyncio.Future[Dispatch | Reject]


class Dispatcher:
    """`load`: how many requests of this frontend each instance has, by id; `own_blocks`: as for
    `Bypass`."""

    def __init__(
        self,
        member: Membership,
        mailbox: Mailbox,
        known: KnownInstances,
        load: Callable[[], Mapping[str, int]],
        own_blocks: Callable[[int], Mapping[str, int]],
        keys: FrontendKeys,
    ) -> None:
        self._member = member
        self._keys = keys
        self._mailbox = mailbox
        self._known = known
        self._load = load
        self.asked: dict[str, _Asked] = {}
        """The requests without a decision yet."""
        self._unused: list[Dispatch] = []
        """Dispatches to instances that are not listed: the next directory tells whether they
        live."""
        self._heard_controller_s = float("-inf")
        self._heard = Directory(())
        self._bypass = Bypass(known, own_blocks)
        self._bypassing: asyncio.Task[None] | None = None
        """With late binding, while requests wait for longer than an answer takes."""

    def heard_controller(self, directory: Directory) -> None:
        """Call it once the controller's directory is known."""
        self._heard_controller_s = asyncio.get_running_loop().time()
        self._bypass.heard_controller(directory, self._heard_controller_s)
        is_another, self._heard = directory.controller != self._heard.controller, directory
        if is_another:
            self._keys.use.tell_all_again()
        if is_another:
            for asked in self.asked.values():
                if not asked.answer.done():
                    asked.request = self._keys.asks_again(asked.request)
                    self._send(DispatchAsked(asked.request))
        unused, self._unused = self._unused, []
        for dispatch in unused:
            self._tell_unused(dispatch)

    def why_not_ready(self) -> str:
        """Why no new request would get an instance; empty if one would. While the controller is
        silent, the last known instances take requests."""
        is_open = any(not snapshot.draining for snapshot in self._known.snapshots())
        if is_open and (self._heard.takes_requests or self._controller_is_silent()):
            return ""
        return "no instance takes new requests now"

    def close(self) -> None:
        if self._bypassing is not None:
            self._bypassing.cancel()

    async def find(self, request: DispatchRequested) -> tuple[Dispatch, InstanceEntry] | None:
        """The decision and its instance; None if the request was aborted meanwhile. Raises
        NotDispatchedError."""
        if self._controller_is_silent() and not request.replayed:
            refusal = self._keys.refusal_alone(request, self._heard.num_frontends)
            if refusal is not None:
                raise NotDispatchedError(refusal.code, refusal.retry_after_s)
        loop = asyncio.get_running_loop()
        asked = _Asked(request, loop.time(), loop.create_future())
        self.asked[request.request_id] = asked
        try:
            return await self._find(asked)
        except asyncio.CancelledError:
            if self._is_wanted(asked):  # the client left, not `abort`
                self._withdraw(asked)
                raise
            return None
        finally:
            if self._is_wanted(asked):
                del self.asked[request.request_id]

    async def _find(self, asked: _Asked) -> tuple[Dispatch, InstanceEntry] | None:
        for wait_s in (*GONE_WAITS_S, None):
            answer = await self._ask(asked)
            if not self._is_wanted(asked):  # aborted just after the answer came
                return None
            if isinstance(answer, Reject):
                raise NotDispatchedError(answer.code, answer.retry_after_s)
            entry = self._known.find(answer.instance_id, answer.incarnation)
            if entry is not None:
                return answer, entry
            self.decline(answer)  # died in between, or so it seems from here
            if wait_s is None:
                break
            asked.answer = asyncio.get_running_loop().create_future()
            await asyncio.sleep(wait_s)
            if not self._is_wanted(asked):
                return None
        raise NotDispatchedError(RejectCode.UNAVAILABLE)

    def _is_wanted(self, asked: _Asked) -> bool:
        return self.asked.get(asked.request.request_id) is asked

    def abort(self, request_id: str) -> None:
        """Does nothing for a request that does not wait for a decision."""
        if asked := self.asked.pop(request_id, None):
            self._withdraw(asked)
            asked.answer.cancel()

    def change_rank(self, request_id: str, rank: int) -> None:
        """Asks anew with the new rank, which gives a held request its new place. Does nothing for a
        request that does not wait for a decision."""
        if asked := self.asked.get(request_id):
            asked.request = replace(asked.request, rank=rank)
            self._send(DispatchAsked(asked.request))

    def answered(self, answer: Dispatch | Reject) -> None:
        asked = self.asked.get(answer.request_id)
        if asked is not None and not asked.answer.done():
            asked.answer.set_result(answer)
        else:
            self.decline(answer)

    async def _ask(self, asked: _Asked) -> Dispatch | Reject:
        """Asks until the answer comes: a question may get lost, or the controller that held it."""
        wait_s = CONTROLLER_SILENCE_S
        while True:
            self._send(DispatchAsked(asked.request))
            done, _ = await asyncio.wait({asked.answer}, timeout=wait_s)
            if done:
                return asked.answer.result()
            if self._heard.late_binding:
                wait_s = min(2 * wait_s, MAX_ASK_AGAIN_S)
                if self._bypassing is None or self._bypassing.done():
                    self._bypassing = asyncio.create_task(self._keep_bypassing())
            elif self._controller_is_silent():
                chosen = choose_without_controller(self._known.snapshots(), self._load())
                if chosen is not None:
                    return Dispatch(
                        asked.request.request_id,
                        asked.request.frontend_id,
                        chosen.instance_id,
                        chosen.incarnation,
                        seq=0,
                    )
                if asked.since_s <= self._overdue_since_s():
                    raise NotDispatchedError(RejectCode.UNAVAILABLE)

    async def _keep_bypassing(self) -> None:
        """While anybody waits: decides for them whenever the controller is silent."""
        while self.asked:
            if self._controller_is_silent():
                waiting = (a.request for a in self.asked.values() if not a.answer.done())
                now_s = asyncio.get_running_loop().time()
                heard = self._heard
                answers = self._bypass.decide(
                    waiting, heard.num_frontends, heard.room_to_grow_tokens or 0, now_s
                )
                for answer in answers:
                    self.asked[answer.request_id].answer.set_result(answer)
                overdue_since_s = self._overdue_since_s()
                for asked in self.asked.values():
                    if asked.since_s <= overdue_since_s and not asked.answer.done():
                        r, frontend_id = asked.request.request_id, asked.request.frontend_id
                        asked.answer.set_result(Reject(r, frontend_id, RejectCode.UNAVAILABLE))
            await asyncio.sleep(BYPASS_EVERY_S)

    def _controller_is_silent(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return now_s - self._heard_controller_s > CONTROLLER_SILENCE_S

    def _overdue_since_s(self) -> float:
        """Requests that wait for longer than since then get a refusal, as at the controller: no
        instance could take them for all that time."""
        now_s = asyncio.get_running_loop().time()
        overdue_s = now_s - self._heard.hold_timeout_s
        return overdue_s if self._bypass.last_open_s(now_s) <= overdue_s else float("-inf")

    def _withdraw(self, asked: _Asked) -> None:
        answer = asked.answer
        if answer.done():
            if not answer.cancelled():
                self.decline(answer.result())
            return
        request = asked.request
        cancelled = DispatchCancelled(request.request_id, request.frontend_id)
        self._send(DispatchWithdrawn(cancelled))

    def _send(self, message: DispatchAsked | DispatchWithdrawn) -> None:
        self._mailbox.send(self._member.controller_address, encode(message), droppable=True)

    def decline(self, answer: Dispatch | Reject) -> None:
        """Gives a dispatch back, or the controller would count its request as on its way for
        ever."""
        if isinstance(answer, Dispatch) and not self._tell_unused(answer):
            self._unused.append(answer)

    def _tell_unused(self, dispatch: Dispatch) -> bool:
        """Tells the instance that no request will come; False if that incarnation is not listed."""
        entry = self._known.find(dispatch.instance_id, dispatch.incarnation)
        if entry is not None:
            unused = DispatchUnused(dispatch.incarnation, dispatch.seq)
            self._mailbox.send(entry.address, encode(unused))
        return entry is not None
