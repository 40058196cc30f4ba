"""The emulated engine's host cache: what it keeps and tells, and how blocks come back from it."""

from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.emulated.emulated_engine import EmulatedEngine
from controller.core.load.cached_prefixes import PrefixNames
from tests.unit.emulated.emulated_builders import finish, frames, make_engine, prompt

NUM_BLOCKS = 40


def engine_with(num_host_blocks: int, num_blocks: int = NUM_BLOCKS) -> EmulatedEngine:
    return make_engine(
        num_total_blocks=num_blocks, max_model_len=600, num_host_blocks=num_host_blocks
    )


def serve(engine: EmulatedEngine, ids: list[int]) -> tuple[int, list[int]]:
    """Returns how many tokens of the prompt were cached, and the answer."""
    engine.add(engine.prepare(frames("r", ids, max_tokens=3), 0))
    tokens = finish(engine)["r"]
    (admitted,) = engine.take_events()
    return admitted.num_cached_tokens, tokens


def fetch(engine: EmulatedEngine, ids: list[int], source: EmulatedEngine) -> int | None:
    """Copies what `source`, which may be the engine itself, has of the prompt, as an instance does.
    Returns the number of blocks that came; None if there was no room."""
    assert engine.prefixes is not None
    assert source.prefixes is not None
    reserved = engine.prefixes.reserve("key", engine.prepare(frames("look", ids), 0), len(ids))
    if reserved is None:
        return None
    if not reserved.block_ids:
        return 0
    lent = source.prefixes.lend("key", reserved.names)
    buffer = engine.moves.blocks.buffer(len(lent))
    source.moves.blocks.gather(lent, buffer)
    engine.moves.blocks.scatter(reserved.block_ids[: len(lent)], buffer)
    source.prefixes.take_back("key")
    engine.prefixes.store("key", len(lent))
    return len(lent)


def is_whole(engine: EmulatedEngine) -> bool:
    """Whether every block is free again, and counted once."""
    engine._model.check()
    found = engine.snapshot("", 0)
    return found.num_free_blocks == found.num_total_blocks and not engine.moves.blocks._contents


def names_of(ids: list[int]) -> set[int]:
    return set(PrefixNames(None, None).within(len(ids), lambda first, end: ids[first:end]))


def test_what_the_prefix_cache_has_dropped_comes_back_from_the_host_cache() -> None:
    engine, first = engine_with(200), prompt(1, 500)
    _, answer = serve(engine, first)
    serve(engine, prompt(2, 500))
    assert fetch(engine, first, engine) == 23, "there was room for 8 of them beside the second"
    assert serve(engine, first) == (31 * 16, answer)
    assert is_whole(engine)


def test_other_engines_fetch_what_is_in_the_host_cache() -> None:
    source, other, first = engine_with(200), engine_with(0), prompt(1, 500)
    _, answer = serve(source, first)
    serve(source, prompt(2, 500))
    assert fetch(other, first, source) == 31
    assert serve(other, first) == (31 * 16, answer)
    assert is_whole(source)
    assert is_whole(other)


def test_it_tells_what_it_has_until_that_had_to_go() -> None:
    engine, first, second = engine_with(50), prompt(1, 500), prompt(2, 500)
    serve(engine, first)
    names = names_of(first)
    assert names
    assert engine.take_host_cache_changes() == dict.fromkeys(names, True)
    assert engine.take_host_cache_changes() == {}
    serve(engine, second)
    changes = engine.take_host_cache_changes()
    assert changes is not None
    assert {name for name, is_there in changes.items() if is_there} == names_of(second)
    assert {name for name, is_there in changes.items() if not is_there} <= names
    assert engine_with(0).take_host_cache_changes() is None, "it has none"


@given(
    num_host_blocks=st.integers(1, 120),
    acts=st.lists(
        st.tuples(st.sampled_from(["serve", "load", "fetch"]), st.integers(0, 4), st.booleans()),
        min_size=5,
        max_size=20,
    ),
)
def test_whatever_is_loaded_and_fetched_answers_stay_and_blocks_come_back(
    num_host_blocks: int, acts: list[tuple[str, int, bool]]
) -> None:
    engines = [engine_with(num_host_blocks), engine_with(num_host_blocks, 60)]
    answers: dict[int, list[int]] = {}
    told: list[set[int]] = [set(), set()]
    """The names that each host cache has by its changes. Some of those that are gone never were
    told."""
    for act, number, at_second in acts:
        engine, ids = engines[at_second], prompt(number, 90 + 100 * number)
        if act == "serve":
            _, tokens = serve(engine, ids)
            assert tokens == answers.setdefault(number, tokens)
        else:
            source = engine if act == "load" else engines[not at_second]
            num_blocks = fetch(engine, ids, source)
            assert num_blocks is not None
            if num_blocks:
                assert serve(engine, ids)[0] >= num_blocks * 16
        for each, names in zip(engines, told, strict=True):
            assert is_whole(each)
            for name, is_there in (each.take_host_cache_changes() or {}).items():
                (names.add if is_there else names.discard)(name)
            assert names == {
                name for segment in each._model._state.host_cache._segments for name in segment[1:]
            }
