"""The names of prefixes, an instance's reports of its cache, and what the scheduler knows by
them."""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.load import cached_prefixes
from controller.core.load.cached_prefixes import (
    LATE_S,
    PREFIX_TOKENS,
    CachedPrefixes,
    CacheReport,
    CacheReporter,
    PrefixNames,
)

IDS = ["a", "b", "c"]
NAMES = st.integers(0, 30)


# -- names -----------------------------------------------------------------------------------------


def names_of(tokens: list[int], *apart: str | None) -> list[int]:
    return list(PrefixNames(*apart).within(len(tokens), lambda first, end: tokens[first:end]))


@given(st.integers(0, 900), st.integers(0, 700), st.integers(0, 700))
def test_prompts_share_the_names_of_the_prefixes_that_they_share(shared, one, other) -> None:
    begin = list(range(shared))
    left = names_of([*begin, *([1] * one)])
    right = names_of([*begin, *([2] * other)])
    assert len(left) == (shared + one) // PREFIX_TOKENS
    num_shared = shared // PREFIX_TOKENS
    assert left[:num_shared] == right[:num_shared]
    assert not set(left[num_shared:]) & set(right[num_shared:])
    assert not set(left) & set(names_of([*begin, *([1] * one)], "salt"))


@given(st.lists(st.integers(1, 600), max_size=6), st.sampled_from((16, 48, 128, 256, 400, 1024)))
def test_a_sequence_that_grows_is_named_block_by_block_as_at_once(growth, block_size) -> None:
    tokens = [random.Random(0).randrange(1000) for _ in range(sum(growth))]
    names, asked = PrefixNames(), []

    def part(first: int, end: int) -> list[int]:
        asked.append((first, end))
        return tokens[first:end]

    found, num_full = [], 0
    for index in range(len(tokens) // block_size):
        found += names.ending_in(index * block_size, (index + 1) * block_size, part)
        num_full = (index + 1) * block_size
    assert found == names_of(tokens[:num_full])
    assert len(asked) == len(set(asked)), "each token is hashed once"


# -- reports ---------------------------------------------------------------------------------------


class Cache:
    """An instance's cache, its reporter, and the messages that may be lost."""

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id
        self.names: set[int] = set()
        self.reporter = CacheReporter()

    def change(self, dice: random.Random) -> None:
        changes = {name: dice.random() < 0.6 for name in dice.sample(range(40), dice.randint(0, 9))}
        for name, is_cached in changes.items():
            (self.names.add if is_cached else self.names.discard)(name)
        self.reporter.changed(changes)

    def tell(self, known: CachedPrefixes, now_s: float) -> None:
        report = self.reporter.take()
        if report is not None and known.report(self.instance_id, report, now_s):
            self.reporter.start_over()


def reported(known: CachedPrefixes, instance_id: str) -> set[int]:
    return {name for name in range(40) if instance_id in known.matched([name])}


@pytest.mark.parametrize("seed", range(30))
def test_all_that_is_cached_is_known_again_after_lost_reports(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_prefixes, "MAX_NAMES", 7)
    dice, known, now_s = random.Random(seed), CachedPrefixes(), 0.0
    caches = [Cache(each) for each in IDS]
    for _ in range(200):
        now_s += 0.3
        cache = dice.choice(caches)
        cache.change(dice)
        if dice.random() < 0.1:
            cache.reporter.take()  # it is lost
        elif dice.random() < 0.02:
            known = CachedPrefixes()  # the controller has started again
        else:
            cache.tell(known, now_s)
        known.check()
    for cache in caches:
        for _ in range(20):
            now_s += 0.3
            cache.change(
                random.Random(0)
            )  # the last report may be lost: only the next one shows it
            cache.tell(known, now_s)
        while cache.reporter._unreported:
            cache.tell(known, now_s)
        assert reported(known, cache.instance_id) == cache.names
        assert known.num_known(cache.instance_id) == len(cache.names)
    known.check()


def test_a_report_is_bounded_and_says_the_latest_of_each_name() -> None:
    reporter = CacheReporter()
    assert reporter.take() == CacheReport(1), "an empty cache is news once"
    assert reporter.take() is None
    reporter.changed(dict.fromkeys(range(1500), True))
    reporter.changed({3: False, 1499: False})
    first, second = reporter.take(), reporter.take()
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (2, 3)
    assert len(first.stored) + len(first.dropped) == cached_prefixes.MAX_NAMES
    assert {*first.stored, *second.stored} == {*range(1500)} - {3, 1499}
    assert {*first.dropped, *second.dropped} == {3, 1499}


def test_an_instance_is_asked_once_a_second_while_reports_are_missing() -> None:
    known = CachedPrefixes()
    assert known.report("a", CacheReport(5, (1,)), 0.0)
    assert not known.report("a", CacheReport(6, (2,)), 0.1), "it has been asked"
    assert known.report("a", CacheReport(7, (3,)), 1.1), "the question may be lost"
    assert known.matched([2]) == {}
    assert not known.report("a", CacheReport(1, (1,)), 1.2)
    assert known.report("a", CacheReport(3, (2,)), 2.5)
    assert known.matched([1]) == {"a": 1}, "what was known counts until the new reports"


# -- what is known, beside plain sets --------------------------------------------------------------


@given(st.data())
def test_what_is_reported_or_due_counts_from_the_first_name_on(data) -> None:
    known = CachedPrefixes()
    cached: dict[str, set[int]] = defaultdict(set)
    due: dict[str, list[tuple[int, tuple[int, ...], float]]] = defaultdict(list)
    numbers: dict[str, int] = defaultdict(int)
    now_s, seq = 0.0, 0
    for _ in range(data.draw(st.integers(1, 40))):
        now_s += data.draw(st.sampled_from((0.0, 0.4, 3.0)))
        instance_id = data.draw(st.sampled_from(IDS))
        names = tuple(data.draw(st.lists(NAMES, unique=True, max_size=6)))
        match data.draw(st.sampled_from(("stored", "dropped", "due", "settle", "forget"))):
            case "stored":
                numbers[instance_id] += 1
                known.report(instance_id, CacheReport(numbers[instance_id], names), now_s)
                cached[instance_id].update(names)
            case "dropped":
                numbers[instance_id] += 1
                known.report(instance_id, CacheReport(numbers[instance_id], (), names), now_s)
                cached[instance_id].difference_update(names)
            case "due":
                seq += 1
                known.expect(instance_id, names, seq, now_s, now_s + 1.0)
                if names:
                    due[instance_id].append((seq, names, now_s + 2.0 + LATE_S))
            case "settle":
                computed = data.draw(st.integers(0, seq))
                known.settle(instance_id, computed, now_s)
                mine = due[instance_id]
                while mine and (mine[0][0] <= computed or mine[0][2] <= now_s):
                    mine.pop(0)
            case "forget":
                known.forget(instance_id)
                for each in (cached, due, numbers):
                    each.pop(instance_id, None)
        known.check()
        prompt = data.draw(st.lists(NAMES, unique=True, max_size=8))
        expected = {}
        for each in IDS:
            has = cached[each].union(*(names for _, names, _ in due[each]))
            number = next((n for n, name in enumerate(prompt) if name not in has), len(prompt))
            if number:
                expected[each] = number
        assert known.matched(prompt) == expected


def test_the_names_that_were_reported_first_are_forgotten_first() -> None:
    known = CachedPrefixes(max_known=8)
    known.report("a", CacheReport(1, tuple(range(10))), 0.0)
    known.check()
    assert [name for name in range(10) if known.matched([name])] == [*range(2, 10)]
    known.report("b", CacheReport(1, (9,)), 0.0)
    known.check()
    assert known.num_known("a") == 4
    assert known.matched([9]) == {"a": 1, "b": 1}


def test_a_prompt_that_is_not_computed_in_time_is_given_up() -> None:
    known = CachedPrefixes()
    known.expect("a", (1, 2), 1, 0.0, 2.0)
    known.expect("a", (1, 3), 2, 0.0, 2.5)
    known.settle("a", 0, 4.9)
    assert known.matched([1, 2]) == {"a": 2}
    known.settle("a", 0, 5.0)
    assert known.matched([1, 2]) == {"a": 1}
    known.settle("a", 2, 5.0)
    assert known.matched([1]) == {}
    known.check()
