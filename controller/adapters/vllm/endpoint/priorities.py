"""Which priority a client asks for, by header or by field, and whether its key allows it.

    X-Llumctl-Priority: high       a level's name
    "priority": -1                 in the request's body, as vLLM has it: minus the level's rank

A client gives one of both, or both if they agree. A request that asks for none gets rank 0, or the
first level of its key's list if that list lacks rank 0. The gate refuses bad priorities in JSON
bodies; in other bodies, which it does not read, `PoolClient` refuses them by the same
`AskedPriority`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus

from controller.adapters.vllm.checks.headers import RefusedError

HEADER = "X-Llumctl-Priority"
_HEADER = HEADER.lower().encode()
MAX_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class AskedPriority:
    """The priority that one HTTP request asks for, and those that it may have."""

    levels: Mapping[str, int]
    """Rank by name."""
    by_header: str | None = None
    may: Sequence[str] = ()
    """Levels that the request's key may ask for, in the order of its list; empty: all."""

    def rank(self, priority: int | None) -> int:
        """`priority`: the body's field; None: it has none. Raises RefusedError (400, 403)."""
        rank = self._asked_rank(priority)
        if rank is None:
            return 0 if self._allows(0) else self.levels[self.may[0]]
        if not self._allows(rank):
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                f"this API key may not ask for the priority {self._name(rank)};"
                f" it may ask for {', '.join(self.may)}",
                "priority" if self.by_header is None else HEADER,
            )
        return rank

    def rank_of_sequence(self, priority: int) -> int:
        """`rank` for a request as vLLM passes it on, where 0 also stands for an absent field."""
        return self.rank(priority or None)

    def _asked_rank(self, priority: int | None) -> int | None:
        if priority is not None and -priority not in self.levels.values():
            allowed = ", ".join(str(-rank) for rank in sorted(self.levels.values()))
            why = f"priority {priority} is not one of {allowed}"
            raise RefusedError(HTTPStatus.BAD_REQUEST, why, "priority")
        if self.by_header is None:
            return None if priority is None else -priority
        rank = self.levels[self.by_header]
        if priority is not None and priority != -rank:
            raise RefusedError(
                HTTPStatus.BAD_REQUEST,
                f"priority {priority} and the header {HEADER}: {self.by_header}, which is"
                f" {-rank}, disagree",
                "priority",
            )
        return rank

    def _allows(self, rank: int) -> bool:
        return not self.may or rank in [self.levels[name] for name in self.may]

    def _name(self, rank: int) -> str:
        return next(name for name, known in self.levels.items() if known == rank)


def read_asked_priority(
    headers: Iterable[tuple[bytes, bytes]], levels: Mapping[str, int], may: Sequence[str]
) -> AskedPriority:
    """Raises RefusedError (400) for an unknown level, or for two levels."""
    named = {value.strip().decode("latin-1") for name, value in headers if name == _HEADER}
    if len(named) > 1:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"{HEADER} is given more than once", HEADER)
    name = named.pop() if named else None
    if name is not None and name not in levels:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST,
            f"{HEADER}: there is no priority level {name[:MAX_SHOWN_CHARS]!r};"
            f" there are {', '.join(levels)}",
            HEADER,
        )
    return AskedPriority(levels, name, may)


ASKED_PRIORITY: ContextVar[AskedPriority | None] = ContextVar("asked_priority", default=None)
"""Priority of the HTTP request that this task, or the task that started it, answers."""
