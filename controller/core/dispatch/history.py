"""What the dispatcher remembers of its own choices: the last one, and the prompts that it sent.

Which prefixes an instance has cached is known to its engine alone. The dispatcher goes by what it
sent there, and by how much the instance can hold.
"""

from collections import OrderedDict

from controller.core.dispatch.instance_record import InstanceRecord
from controller.core.dispatch.newcomer import Newcomer

MAX_HASHES = 1 << 18
"""For all instances together; one takes about 120 bytes, so these 30 MB."""


class SeenPrefixes:
    """For each instance the prefix hashes of the prompts sent there, the latest used ones."""

    def __init__(self, max_hashes: int = MAX_HASHES) -> None:
        self._max_hashes = max_hashes
        self._by_instance: dict[str, OrderedDict[int, None]] = {}
        """Of each instance, the longest unused first."""

    def note(self, instance_id: str, newcomer: Newcomer, num_instance_tokens: int) -> None:
        """The request goes to this instance, whose KV cache holds so many tokens."""
        if not newcomer.prefix_hashes:
            return
        seen = self._by_instance.get(instance_id)
        if seen is None:
            seen = self._by_instance[instance_id] = OrderedDict()
            for others in self._by_instance.values():
                _shorten(others, self._max_hashes // len(self._by_instance))
        # The later blocks of a prompt count as unused for longer, as they do in an engine: without
        # its beginning a prefix is of no use.
        for prefix_hash in reversed(newcomer.prefix_hashes):
            seen[prefix_hash] = None
            seen.move_to_end(prefix_hash)
        num_fitting = num_instance_tokens // max(1, newcomer.prefix_hash_tokens)
        _shorten(seen, min(num_fitting, self._max_hashes // len(self._by_instance)))

    def num_matched_tokens(self, instance_id: str, newcomer: Newcomer) -> int:
        """How many tokens of the prompt, from its beginning, the instance has seen."""
        seen = self._by_instance.get(instance_id)
        if not seen:
            return 0
        num_matched = 0
        for prefix_hash in newcomer.prefix_hashes:
            if prefix_hash not in seen:
                break
            num_matched += 1
        return min(num_matched * newcomer.prefix_hash_tokens, newcomer.num_prompt_tokens)

    def num_seen(self, instance_id: str) -> int:
        """How many hashes are remembered of the instance."""
        return len(self._by_instance.get(instance_id, ()))

    def forget(self, instance_id: str) -> None:
        """The instance's cache is gone."""
        self._by_instance.pop(instance_id, None)

    def check(self) -> None:
        """Raises AssertionError if more is remembered than may be."""
        assert sum(map(len, self._by_instance.values())) <= self._max_hashes


def _shorten(seen: "OrderedDict[int, None]", most: int) -> None:
    while len(seen) > most:
        seen.popitem(last=False)


class History:
    """`last` is the instance chosen last; None before the first choice."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.prefixes = SeenPrefixes()

    def note(self, chosen: InstanceRecord, newcomer: Newcomer) -> None:
        """The request goes to this instance."""
        if chosen.snapshot is not None:
            capacity = chosen.snapshot.capacity_blocks * chosen.snapshot.block_size
            self.prefixes.note(chosen.instance_id, newcomer, capacity)
