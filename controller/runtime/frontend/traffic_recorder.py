"""A frontend's part in a recording of the traffic: lengths, times and hashes of requests that end.

A request pays for it with a note when it comes and when it ends. Prompts are hashed afterwards, a
few blocks in each turn of the event loop. What waits for that is bounded; beyond the bound requests
are lost to the recording, and their number is told.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from controller.core.record.request_record import RequestRecord
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.prompt_hashes import prefix_hashes, session_hash
from controller.runtime.messages.requests import RequestTraffic, TrafficAsked, TrafficTold
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)

TELL_EVERY_S = 0.2
# The controller repeats what it asks for every second; a recording that nobody asks for any more is
# over, so that a dead controller leaves no frontend recording.
ASKED_FOR_S = 5.0
# About 0.3 ms of the event loop.
HASHES_PER_TURN = 256
# Of requests that have ended and are not told yet. Their prompts take some 40 bytes per token.
MAX_WAITING = 2_000
MAX_WAITING_TOKENS = 2_000_000
MAX_HASH_BYTES_TOLD = 256 << 10
"""In one message, but for the last request in it."""


@dataclass(frozen=True, slots=True)
class _Noted:
    request: DispatchRequested
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Ended:
    noted: _Noted
    record: RequestRecord


class TrafficRecorder:
    """`tell` sends to the controller, which may drop it; `incarnation` is this frontend's."""

    def __init__(
        self,
        frontend_id: str,
        incarnation: Callable[[], int],
        tell: Callable[[TrafficTold], None],
    ) -> None:
        self._frontend_id = frontend_id
        self._incarnation = incarnation
        self._tell = tell
        self._num_hash_tokens = 0
        self._until_s = 0.0
        self._is_recording = asyncio.Event()
        self._begin(b"")

    def _begin(self, key: bytes) -> None:
        """Forgets the recording before. An empty key: there is none now."""
        self._key = key
        if key:
            self._is_recording.set()
        else:
            self._is_recording.clear()
        self._live: dict[str, _Noted] = {}
        self._ended: deque[_Ended] = deque()
        self._num_waiting_tokens = 0
        self._num_before = 0
        """Requests that have ended and wait no more: they were told, or lost."""

    def asked(self, asked: TrafficAsked) -> None:
        if asked.key != self._key:
            self._begin(asked.key)
        self._num_hash_tokens = asked.num_hash_tokens
        self._until_s = asyncio.get_running_loop().time() + ASKED_FOR_S

    def arrived(self, request: DispatchRequested, token_ids: Sequence[int]) -> None:
        if self._key:
            self._live[request.request_id] = _Noted(request, token_ids)

    def ended(self, record: RequestRecord) -> None:
        noted = self._live.pop(record.request_id, None)
        if noted is None:
            return  # it came before the recording
        num_tokens = len(noted.token_ids)
        if (
            len(self._ended) >= MAX_WAITING
            or self._num_waiting_tokens + num_tokens > MAX_WAITING_TOKENS
        ):
            self._num_before += 1
            return
        self._ended.append(_Ended(noted, record))
        self._num_waiting_tokens += num_tokens

    async def keep_telling(self) -> None:
        await repeat(TELL_EVERY_S, "the recording of traffic", self._tell_news, self._is_recording)

    async def _tell_news(self) -> None:
        if self._key and asyncio.get_running_loop().time() >= self._until_s:
            self._begin(b"")
        if self._key:
            await self._tell_ended(self._key)

    async def _tell_ended(self, key: bytes) -> None:
        """Tells of all that have ended, and in any case how many have not."""
        while True:
            requests: list[RequestTraffic] = []
            num_bytes = 0
            while self._ended and num_bytes < MAX_HASH_BYTES_TOLD:
                ended = self._ended.popleft()
                self._num_waiting_tokens -= len(ended.noted.token_ids)
                traffic = await self._traffic(key, ended)
                if self._key != key:
                    return
                if traffic is None:
                    self._num_before += 1
                    continue
                requests.append(traffic)
                num_bytes += len(traffic.prefix_hashes)
            self._tell(
                TrafficTold(
                    key,
                    self._frontend_id,
                    self._incarnation(),
                    self._num_before,
                    len(self._live) + len(self._ended),
                    tuple(requests),
                )
            )
            self._num_before += len(requests)
            if not self._ended:
                return

    async def _traffic(self, key: bytes, ended: _Ended) -> RequestTraffic | None:
        request, record = ended.noted.request, ended.record
        try:
            hashes = await _joined(prefix_hashes(key, ended.noted.token_ids, self._num_hash_tokens))
        except Exception:  # the others are told all the same
            log.exception("a request cannot be recorded")
            return None
        return RequestTraffic(
            request.arrival_time_s,
            request.num_prompt_tokens,
            record.num_output_tokens,
            request.rank,
            record.state,
            session_hash(key, request.session),
            hashes,
        )


async def _joined(hashes: Iterator[bytes]) -> bytes:
    """Gives way to everything else after each few, and at least once."""
    pieces: list[bytes] = []
    while True:
        few = list(itertools.islice(hashes, HASHES_PER_TURN))
        pieces += few
        await asyncio.sleep(0)
        if len(few) < HASHES_PER_TURN:
            return b"".join(pieces)
