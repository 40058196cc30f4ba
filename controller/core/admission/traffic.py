"""Traffic between the models of a cluster: which model answers the requests that name a model,
which models get copies of the requests that a model serves, and how the copies compare.

Each model has rules of its own (`[traffic]` of the model). A rule is applied once: where a request
goes by the rule of the model that it names, the rule of the other model says nothing more. A copy
is not copied, and is not sent on."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf

from controller.core.record.request_record import RequestRecord, RequestState
from controller.core.settings import TrafficSettings

WHOLE = 100.0
"""A share of all requests, in percent."""

Shares = tuple[tuple[str, float], ...]
"""Names of models, each with its weight or its share in percent."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The rules of one model. `split`: the weights of the models that answer the requests which
    name it; empty: it answers them all. `mirror`: of how many in a hundred of the requests that it
    serves another model gets a copy."""

    split: Shares = ()
    mirror: Shares = ()


NO_TRAFFIC = Traffic()


def traffic_of(settings: TrafficSettings, model: str, models: Collection[str]) -> Traffic:
    """The rules in the settings of `model`, one of `models`. Raises ValueError, with the name of
    the setting."""
    split = _shares("traffic.split", settings.split, models)
    mirror = _shares("traffic.mirror", settings.mirror, models)
    if split and not sum(weight for _, weight in split):
        raise ValueError("traffic.split: all weights are 0, so nobody would answer")
    for name, share in mirror:
        if name == model:
            raise ValueError(f"traffic.mirror: {model} serves these requests itself")
        if share > WHOLE:
            raise ValueError(f"traffic.mirror: {name}={share:g} is more than 100 percent")
    return Traffic(split, mirror)


def _shares(key: str, text: str | None, models: Collection[str]) -> Shares:
    """Reads `large=90, next=10`."""
    shares: dict[str, float] = {}
    for part in filter(None, map(str.strip, (text or "").split(","))):
        name, equals, number = (each.strip() for each in part.partition("="))
        share = _number(number)
        if not equals or not 0 <= share < inf:
            raise ValueError(f"{key}: {part[:60]!r} is not of the form MODEL=NUMBER")
        if name not in models:
            known = ", ".join(models)
            raise ValueError(f"{key}: there is no model {name[:60]!r}; there are {known}")
        if name in shares:
            raise ValueError(f"{key}: {name} is given twice")
        shares[name] = share
    return tuple(shares.items())


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def chosen(split: Shares, draw: float) -> str:
    """The model to which a request goes. `draw`: at least 0 and less than 1; the same for all
    requests of a session, so that a conversation stays with its model. If a weight grows at the
    cost of its neighbour, only sessions between these two go elsewhere."""
    rest = draw * sum(weight for _, weight in split)
    for name, weight in split:
        rest -= weight
        if rest < 0:
            return name
    return next(name for name, weight in reversed(split) if weight)  # by rounding


# -- what became of the requests -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Served:
    """What a client's request got, which may be several requests for the cluster. Times are from
    its arrival. `ttft_s` is the time to the end of an answer that has no tokens."""

    num_tokens: int
    ttft_s: float
    latency_s: float


def served(records: Sequence[RequestRecord]) -> Served | None:
    """What the request got; None if it did not finish."""
    if not records or any(each.state is not RequestState.FINISHED for each in records):
        return None
    arrival_s = min(each.arrival_time_s for each in records)
    end_s = max(each.end_time_s or arrival_s for each in records)
    firsts_s = [s for each in records if (s := each.first_token_time_s) is not None]
    return Served(
        sum(each.num_output_tokens for each in records),
        min(firsts_s, default=end_s) - arrival_s,
        end_s - arrival_s,
    )


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """The copies that one model got of another's requests, by what became of them. Copies that are
    under way, and those whose client left, are in `num_copies` only. The sums are over the
    compared ones, of which both finished: of the original, and of the copy."""

    num_copies: int = 0
    num_left_out: int = 0
    """Requests that got no copy because the frontend had too many requests."""
    num_failed: int = 0
    """Copies that were refused, or failed, while the original finished."""
    num_compared: int = 0
    num_tokens: int = 0
    num_copy_tokens: int = 0
    ttft_s: float = 0.0
    copy_ttft_s: float = 0.0
    latency_s: float = 0.0
    copy_latency_s: float = 0.0

    def __add__(self, other: "CopyCounts") -> "CopyCounts":
        names = (each.name for each in fields(self))
        return CopyCounts(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class TrafficCounts:
    """What the rules of one model did since they were given. `answered`: how many of the requests
    that named it each model got, if they are split. `copies`: by the model that got them."""

    answered: Mapping[str, int]
    copies: Mapping[str, CopyCounts]


NOTHING_COUNTED = TrafficCounts({}, {})


def counted_together(counts: Iterable[TrafficCounts]) -> TrafficCounts:
    answered: dict[str, int] = {}
    copies: dict[str, CopyCounts] = {}
    for each in counts:
        for name, number in each.answered.items():
            answered[name] = answered.get(name, 0) + number
        for name, found in each.copies.items():
            copies[name] = copies.get(name, CopyCounts()) + found
    return TrafficCounts(answered, copies)


class TrafficBook:
    """Counts at one frontend what the rules of one model do. A rule that is changed is counted
    anew."""

    def __init__(self) -> None:
        self.rules = NO_TRAFFIC
        self._answered: dict[str, int] = {}
        self._copies: dict[str, CopyCounts] = {}

    def set_rules(self, rules: Traffic) -> None:
        if rules.split != self.rules.split:
            self._answered = dict.fromkeys((name for name, _ in rules.split), 0)
        if rules.mirror != self.rules.mirror:
            self._copies = {name: CopyCounts() for name, _ in rules.mirror}
        self.rules = rules

    def view(self) -> TrafficCounts:
        return TrafficCounts(dict(self._answered), dict(self._copies))

    def answers(self, model: str) -> None:
        if model in self._answered:
            self._answered[model] += 1

    def copied(self, model: str) -> None:
        self._add(model, num_copies=1)

    def left_out(self, model: str) -> None:
        self._add(model, num_left_out=1)

    def ended(self, model: str, original: Served | None, copy: Served | None) -> None:
        """Notes that a request and its copy are over; None: it did not finish."""
        if original is None:
            return
        if copy is None:
            self._add(model, num_failed=1)
            return
        self._add(
            model,
            num_compared=1,
            num_tokens=original.num_tokens,
            num_copy_tokens=copy.num_tokens,
            ttft_s=original.ttft_s,
            copy_ttft_s=copy.ttft_s,
            latency_s=original.latency_s,
            copy_latency_s=copy.latency_s,
        )

    def _add(self, model: str, **numbers: float) -> None:
        if model in self._copies:  # else the rule has changed since
            self._copies[model] += replace(CopyCounts(), **numbers)  # type: ignore[arg-type]
