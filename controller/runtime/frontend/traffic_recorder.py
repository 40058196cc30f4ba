"""What a frontend reports of prompts without their text. For dispatch it reports hashes of their
beginnings. For a recording of the traffic it reports lengths, times and hashes of requests that
have ended.

The hashes only tell which prompts begin alike. They are used in a recording and, by
`PromptPrefixes`, for the controller.

For a recording, a request costs a note when it comes and when it ends. Prompts are hashed
afterwards, a few blocks in each turn of the event loop. The number of requests whose prompts wait
to be hashed is bounded. Requests beyond the bound are missing in the recording, and their number is
reported.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from controller.core.load.cached_prefixes import (
    HASH_BYTES,
    PREFIX_TOKENS,
    HashChain,
    PrefixNames,
)
from controller.core.record.request_record import RequestRecord
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.messages.requests import RequestTraffic, TrafficAsked, TrafficTold
from controller.runtime.repeating import repeat

log = logging.getLogger(__name__)


def prefix_hashes(key: bytes, token_ids: Sequence[int], num_hash_tokens: int) -> Iterator[bytes]:
    """A hash for each full block of `num_hash_tokens` tokens (`HashChain`)."""
    chain = HashChain(key, num_hash_tokens)
    for end in range(num_hash_tokens, len(token_ids) + 1, num_hash_tokens):
        yield chain.add(token_ids[end - num_hash_tokens : end])


def session_hash(key: bytes, session: str) -> str:
    """A name for the session under the key; empty if there is no session."""
    if not session:
        return ""
    told = blake2b(session.encode(), key=key, digest_size=HASH_BYTES, person=b"session")
    return told.hexdigest()


MAX_NAMES = 1024
"""The most prefixes of a prompt that are named. They have up to 262,144 tokens. A
prompt of 60,000 tokens has 234 prefixes, which take 1.1 ms of the event loop and 2 KB of the
message."""


class PromptPrefixes:
    """What a frontend tells the controller of a prompt's beginning, so that requests that begin
    alike can go to an instance that has this beginning in its prefix cache.

    It tells only the names of prefixes (`core/load/cached_prefixes.py`), no text and no tokens. The
    names stay in the memory of the cluster's processes; recordings have hashes of their own, under
    a key. While the controller does not ask, nothing is named.
    """

    def __init__(self) -> None:
        self._on = False

    def switch(self, on: bool) -> None:
        self._on = on

    def of(self, token_ids: Sequence[int], *apart: str | None) -> tuple[int, ...]:
        """The names of a prompt's prefixes; empty while naming is switched off. `apart`: for
        example a cache salt or an adapter (`PrefixNames`)."""
        if not self._on:
            return ()
        num_tokens = min(len(token_ids), PREFIX_TOKENS * MAX_NAMES)
        names = PrefixNames(*apart)
        return tuple(names.within(num_tokens, lambda first, end: token_ids[first:end]))


TELL_EVERY_S = 0.2
# The controller asks anew every second. A recording for which nobody asks any more is over, so that
# no frontend goes on recording for a dead controller.
ASKED_FOR_S = 5.0
# Hashes to compute in one turn: they take about 0.3 ms of the event loop.
HASHES_PER_TURN = 256
# Limits for the requests that have ended and were not reported yet. Their prompts take some 40
# bytes per token.
MAX_WAITING = 2_000
MAX_WAITING_TOKENS = 2_000_000
MAX_HASH_BYTES_TOLD = 256 << 10
"""The most bytes of hashes in one message; the last request in it may exceed this."""


@dataclass(frozen=True, slots=True)
class _Noted:
    request: DispatchRequested
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Ended:
    noted: _Noted
    record: RequestRecord


class TrafficRecorder:
    """`tell` sends a message to the controller, which may drop it. `incarnation` returns the
    incarnation of this frontend."""

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
        """Forgets the previous recording. An empty key means that there is no recording now."""
        self._key = key
        if key:
            self._is_recording.set()
        else:
            self._is_recording.clear()
        self._live: dict[str, _Noted] = {}
        self._ended: deque[_Ended] = deque()
        self._num_waiting_tokens = 0
        self._num_before = 0
        """How many requests have ended and do not wait any more, because they were reported or
        lost."""

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
            return  # the request came before the recording began
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
        """Tells of all requests that have ended, and how many have not ended yet."""
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
        except Exception:  # the other requests are reported in any case
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
    """Joins the hashes. After every few hashes, and at least once, it lets other tasks run."""
    pieces: list[bytes] = []
    while True:
        few = list(itertools.islice(hashes, HASHES_PER_TURN))
        pieces += few
        await asyncio.sleep(0)
        if len(few) < HASHES_PER_TURN:
            return b"".join(pieces)
