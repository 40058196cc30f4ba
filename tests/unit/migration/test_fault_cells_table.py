"""The table of faults of live migration, and that each of its cells has a test.

    K   goes on at the source, destination frees     R   the same after it was stopped, newer hop
    M   the destination's, source frees              X   over, both free
    P   lost here: replayed, or one error            Q   the frontend decides: M or R

A cell's tests are named test_<row>__<column>__<what comes of it>.
"""

import re

import pytest
import test_fault_cells_deaths
import test_fault_cells_messages
import test_fault_cells_requests

TABLE = """
| fault | pre-allocate | copying | suspended | COMMIT in doubt | committed |
| --- | --- | --- | --- | --- | --- |
| source dies | P, lease expires | P | P | M if COMMIT came, else P | M |
| destination dies | K | K | R | Q then R | P |
| destination out of blocks | K | K, frees all stages | R | impossible | local preemption |
| request finishes | X | X and ABORT | X | X on the owner | X |
| preempted on the source | ABORT | ABORT, copies void | never | never | destination preempts |
| client disconnects or aborts | X | X | X | tombstone on both | X, source forwards |
| global scheduler dies | goes on | goes on | goes on | goes on | M |
| link stalls | K at the deadline | K | R at the deadline | Q | M |
| message lost | retry, then K | retry, then K | retry, then R | Q | acknowledge again |
| message duplicated | same reply | same reply | same reply | same reply | same reply |
| message late | NACK, allocates nothing | NACK | NACK then R | NACK then R | ignored |
| priority changed | applied, sent | applied, sent | queued | queued to the owner | forwarded |
| drain cancelled | K | K | finish, M | Q | M |
"""


def _slug(words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", words.strip().lower()).strip("_")


def _cells() -> list[str]:
    lines = [line.strip("|").split("|") for line in TABLE.strip().splitlines()]
    columns = [_slug(word) for word in lines[0][1:]]
    assert all(len(line) == len(lines[0]) for line in lines)
    return [f"{_slug(line[0])}__{column}" for line in lines[2:] for column in columns]


def _tests() -> list[str]:
    modules = (test_fault_cells_deaths, test_fault_cells_messages, test_fault_cells_requests)
    return [name for module in modules for name in vars(module) if name.startswith("test_")]


def test_the_table_has_all_its_cells() -> None:
    assert len(_cells()) == len(set(_cells())) == 13 * 5


@pytest.mark.parametrize("cell", _cells())
def test_each_cell_has_a_test(cell: str) -> None:
    assert any(name.startswith(f"test_{cell}__") for name in _tests())


def test_each_test_of_a_cell_names_one_that_exists() -> None:
    named = [name for name in _tests() if "__" in name]
    for name in named:
        assert "__".join(name.removeprefix("test_").split("__")[:2]) in {*_cells(), *_beyond()}


def _beyond() -> set[str]:
    """Tests beside the table."""
    return {"message_duplicated__after_an_abort"}
