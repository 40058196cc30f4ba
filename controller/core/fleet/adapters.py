"""LoRA adapters: what a cluster knows of each, and the machine by which an instance gets them.

vLLM finds an adapter's weights by a number alone. The number comes from the controller, which uses
each number only once: so the same number means the same weights on every instance, and what was
computed with other weights under the same name is never taken for the present ones. The digest of
the adapter's files goes with the number. An instance takes neither a request nor a move whose
adapter has another digest than its own.

The controller tells each instance which adapters there are. The instance fetches the files of each
(a copy that nobody changes afterwards), and loads it into its engine. When an adapter is taken
away, its requests go on until they end; only then the engine unloads it.

    state      event                    next       instructions
    -          Told, it is listed       FETCHING   Fetch
    FETCHING   Fetched                  FETCHED
    FETCHED    no other one is LOADING  LOADING    Load
    LOADING    Loaded                   LOADED     Report
    FETCHING,  Fetched or Loaded,       FAILED     Report; Drop, if there are files
    LOADING    with a reason
    FETCHED    Told, it is not listed   -          Drop, Report
    LOADED     Told, it is not listed   LEAVING    Unload
    LEAVING    Unloaded                 -          Drop, Report
               Unloaded, still in use   LEAVING    LookAgain
               Looked                   LEAVING    Unload
    FAILED     Told, it is not listed   -          Report

An adapter that is taken away while it is fetched or loaded leaves when that is done. Adapters are
loaded one after the other, because the engine takes no step and sends no status while it loads one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from controller.core.value import value

GONE = "it is not loaded any more"
LOOK_EVERY_S = 0.5
"""How often an instance looks whether an adapter that is to leave is still in use."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """`name`: the model's name in requests. `number`: from 1, and used once in a cluster. `path`:
    the folder with the adapter's files, on each machine. `digest`: SHA-256 of the files, in hex.
    `rank`: the rank of its matrices."""

    name: str
    number: int
    path: str
    digest: str
    rank: int


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What the files of an adapter say."""

    digest: str
    rank: int


class AdapterState(StrEnum):
    FETCHING = "fetching"
    FETCHED = "fetched"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"
    LEAVING = "leaving"
    """The adapter is not offered any more, and is unloaded as soon as no request uses it."""


# -- events --------------------------------------------------------------------------------


@value
class Told:
    """The controller says which adapters there are. `next_number`: the number of the next one that
    is loaded; all lower numbers that are not among these are gone."""

    adapters: tuple[Adapter, ...]
    next_number: int


@value
class Fetched:
    """`folder`: where the copy of the files is. `why`: why there is none; empty if there is one."""

    number: int
    folder: str = ""
    why: str = ""


@value
class Loaded:
    """`why`: why the engine did not take the adapter; empty if it did."""

    number: int
    why: str = ""


@value
class Unloaded:
    number: int
    in_use: bool = False
    """Whether the engine still has requests with the adapter, so that nothing was unloaded."""


@value
class Looked:
    """The time of LookAgain has come."""

    number: int


Event = Told | Fetched | Loaded | Unloaded | Looked


# -- instructions --------------------------------------------------------------------------


@value
class Fetch:
    adapter: Adapter


@value
class Load:
    adapter: Adapter
    folder: str


@value
class Unload:
    number: int


@value
class Drop:
    """The copy of the adapter's files is not needed here any more."""

    adapter: Adapter


@value
class LookAgain:
    number: int
    after_s: float


@value
class Report:
    """Another adapter can be used here, or one less, or one has failed."""


Instruction = Fetch | Load | Unload | Drop | LookAgain | Report


# -- the machine ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    adapter: Adapter
    state: AdapterState
    listed: bool = True
    folder: str = ""
    why: str = ""


class InstanceAdapters:
    """The adapters of one process of an instance."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._next_number = 0

    def is_loaded(self, number: int) -> bool:
        """Whether a request can have this adapter now. An adapter that leaves still serves requests
        that were on their way."""
        entry = self._entries.get(number)
        return entry is not None and entry.state in (AdapterState.LOADED, AdapterState.LEAVING)

    def why_never(self, number: int) -> str:
        """Why the adapter is not loaded, and will not be; empty if it may be loaded later."""
        entry = self._entries.get(number)
        if entry is None:
            return GONE if number < self._next_number else ""
        return entry.why if entry.listed or self.is_loaded(number) else GONE

    def failures(self) -> dict[int, str]:
        """The reason of each adapter that has failed, by number."""
        return {number: each.why for number, each in self._entries.items() if each.why}

    def handle(self, event: Event) -> list[Instruction]:
        match event:
            case Told(adapters, next_number):
                self._next_number = next_number
                return self._told(adapters)
            case Fetched(number, folder, why):
                return self._fetched(self._entries[number], folder, why)
            case Loaded(number, why):
                return self._loaded(self._entries[number], why)
            case Unloaded(number, in_use):
                return (
                    [LookAgain(number, LOOK_EVERY_S)]
                    if in_use
                    else self._drop(self._entries[number])
                )
            case Looked(number):
                return [Unload(number)]
            case _:
                assert_never(event)

    def _told(self, adapters: Sequence[Adapter]) -> list[Instruction]:
        told: list[Instruction] = []
        listed = {each.number for each in adapters}
        for number, entry in list(self._entries.items()):
            if entry.listed and number not in listed:
                entry.listed = False
                told += self._leave(entry)
        for adapter in adapters:
            if adapter.number not in self._entries:
                self._entries[adapter.number] = _Entry(adapter, AdapterState.FETCHING)
                told.append(Fetch(adapter))
        return told

    def _leave(self, entry: _Entry) -> Iterable[Instruction]:
        number = entry.adapter.number
        if entry.state is AdapterState.FAILED:
            del self._entries[number]
            return [Report()]
        if entry.state is AdapterState.FETCHED:
            return self._drop(entry)
        if entry.state is AdapterState.LOADED:
            entry.state = AdapterState.LEAVING
            return [Unload(number)]
        return []

    def _drop(self, entry: _Entry) -> list[Instruction]:
        del self._entries[entry.adapter.number]
        return [Drop(entry.adapter), Report()]

    def _fetched(self, entry: _Entry, folder: str, why: str) -> list[Instruction]:
        if why:
            return self._fail(entry, why)
        if not entry.listed:
            return self._drop(entry)
        entry.state, entry.folder = AdapterState.FETCHED, folder
        return self._load_next()

    def _load_next(self) -> list[Instruction]:
        entries = self._entries.values()
        if any(each.state is AdapterState.LOADING for each in entries):
            return []
        entry = next((each for each in entries if each.state is AdapterState.FETCHED), None)
        if entry is None:
            return []
        entry.state = AdapterState.LOADING
        return [Load(entry.adapter, entry.folder)]

    def _loaded(self, entry: _Entry, why: str) -> list[Instruction]:
        told: list[Instruction]
        if why:
            told = [Drop(entry.adapter), *self._fail(entry, why)]
        elif not entry.listed:
            entry.state = AdapterState.LEAVING
            told = [Unload(entry.adapter.number)]
        else:
            entry.state = AdapterState.LOADED
            told = [Report()]
        return [*told, *self._load_next()]

    def _fail(self, entry: _Entry, why: str) -> list[Instruction]:
        if entry.listed:
            entry.state, entry.why = AdapterState.FAILED, why
        else:
            del self._entries[entry.adapter.number]
        return [Report()]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for number, entry in self._entries.items():
            assert number == entry.adapter.number
            assert bool(entry.why) == (entry.state is AdapterState.FAILED)
            stays = (AdapterState.FETCHED, AdapterState.LOADED, AdapterState.FAILED)
            assert entry.listed or entry.state not in stays, "it should leave"
            assert not (entry.listed and entry.state is AdapterState.LEAVING), "it should stay"
        states = [entry.state for entry in self._entries.values()]
        num_loading = states.count(AdapterState.LOADING)
        assert num_loading <= 1
        assert num_loading or AdapterState.FETCHED not in states, "nobody loads it"
