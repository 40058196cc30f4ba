"""Which copies of KV blocks are verified, and which instances a destination takes no more copies
from. A verified copy is one of which both sides take a digest, which the destination compares.

A digest takes about 1 s per GiB on a core, ten times as long as a copy over 10 GB/s. So one copy in
16 is verified, and of a long prefix only some blocks.
"""

from collections.abc import Callable, Sequence

from controller.core.load.snapshot import InstanceRef

VERIFIED_EVERY = 16
"""One in so many copies is verified."""
SAMPLE_BYTES = 64 << 20
"""How much of a fetched prefix is digested at most: 75 ms of a core on each side. To digest all of
it would take longer than to compute it (150 us for a token of an 8B model, against 33 us), so that
all verified fetches would be too late."""
MAX_MOVE_BYTES = 1 << 30
"""Moves of more bytes are not verified: the request would stay for seconds longer on an instance
that is to be relieved."""
QUARANTINE_S = 600.0
"""For how long an instance fetches nothing from another one after a corrupt copy from there."""


def sample_of(block_ids: Sequence[int], block_bytes: int) -> Sequence[int]:
    """The blocks of a fetch that are digested: the first, the last and as many between them as
    `SAMPLE_BYTES` allow, at equal distances. Both sides have as many blocks, and so digest the
    same ones."""
    num_blocks, most = len(block_ids), max(2, SAMPLE_BYTES // block_bytes)
    if num_blocks <= most:
        return block_ids
    return [block_ids[i * (num_blocks - 1) // (most - 1)] for i in range(most)]


class Sample:
    """Chooses which copies are verified: the first one, and later one in `VERIFIED_EVERY`."""

    def __init__(self) -> None:
        self._num_since: int | None = None
        """The copies since the last one that was verified; None before the first one."""

    @property
    def due(self) -> bool:
        """Whether a copy that begins now is to be verified."""
        return self._num_since is None or self._num_since >= VERIFIED_EVERY - 1

    def copied(self, *, verified: bool) -> None:
        """Counts a copy that brought blocks."""
        self._num_since = 0 if verified else (self._num_since or 0) + 1

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._num_since is None or self._num_since >= 0


class MoveSample:
    """Chooses, at a source, which of the moves that it begins by its own choice are verified."""

    def __init__(self) -> None:
        self._sample = Sample()

    def begins(self, num_bytes: int, *, hurried: bool) -> bool:
        """Whether to verify a move of so many bytes, which begins now. `hurried`: this instance is
        about to be ended. Mutates."""
        if hurried or not 0 < num_bytes <= MAX_MOVE_BYTES:
            return False
        verified = self._sample.due
        self._sample.copied(verified=verified)
        return verified


class LinkChecks:
    """What a destination knows of its links from other instances: which fetch over each is verified
    next, and which of them are in quarantine because a copy was corrupt.

    A quarantine is over the id of the source, whichever incarnation it has: a memory or network
    card that changes bits is still there after a restart. Times are in seconds, by the caller's
    clock.
    """

    def __init__(self) -> None:
        self._samples: dict[InstanceRef, Sample] = {}
        self._until_s: dict[str, float] = {}
        """By the id of the source, when its quarantine ends."""

    def trusts(self, source: InstanceRef, now_s: float) -> bool:
        """Whether copies from there may be used."""
        return now_s >= self._until_s.get(source.instance_id, now_s)

    def verifies(self, source: InstanceRef) -> bool:
        """Whether a fetch from there that begins now is to be verified."""
        sample = self._samples.get(source)
        return sample is None or sample.due

    def copied(self, source: InstanceRef, *, verified: bool) -> None:
        """Counts a fetch that brought blocks."""
        self._samples.setdefault(source, Sample()).copied(verified=verified)

    def differed(self, source: InstanceRef, now_s: float) -> None:
        """A copy from there was corrupt: the quarantine begins, or begins anew. The first fetch
        after it is verified."""
        self._until_s[source.instance_id] = now_s + QUARANTINE_S
        self._samples.pop(source, None)

    def lost(self, is_lost: Callable[[InstanceRef], bool]) -> None:
        """Forgets the counts of instances that are gone."""
        for source in [each for each in self._samples if is_lost(each)]:
            del self._samples[source]

    def view(self, now_s: float) -> tuple[str, ...]:
        """The ids of the sources in quarantine, in order. Forgets those whose time is over."""
        self._until_s = {
            each: until_s for each, until_s in self._until_s.items() if until_s > now_s
        }
        return tuple(sorted(self._until_s))

    def check(self, now_s: float) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert all(until_s <= now_s + QUARANTINE_S for until_s in self._until_s.values())
        for sample in self._samples.values():
            sample.check()
