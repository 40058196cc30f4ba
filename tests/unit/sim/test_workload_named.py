"""A workload by its name: it is reproducible; each option by itself; files scaled in every way; and
requests that no instance could run."""

import contextlib
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model.engine_model import EngineModel
from controller.model.engine_state import ModelRequest
from controller.model.profile import ModelConfig, load_profile
from controller.sim.run import too_long
from controller.sim.workload.named import workload
from controller.sim.workload.trace import Trace, TraceRequest, at_rate, with_requests

TRACE = Trace(
    "t",
    [
        TraceRequest(0.0, 10, 1, 0, "a", (1, 2)),
        TraceRequest(1.0, 20, 2, 1, "b", (1, 3)),
        TraceRequest(4.0, 30, 3, 0, "a", ()),
    ],
    8,
)


def arrivals(trace: Trace) -> list[float]:
    return [request.arrival_s for request in trace.requests]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Four requests, at 0, 1, 2 and 6 s."""
    path = tmp_path / "file.jsonl"
    rows = [(0, 10, 1), (1000, 20, 2), (2000, 30, 3), (6000, 40, 4)]
    path.write_text(
        "".join(
            f'{{"timestamp": {at}, "input_length": {i}, "output_length": {o}}}\n'
            for at, i, o in rows
        )
    )
    return str(path)


def timeless(trace: Trace) -> list[TraceRequest]:
    return [request.arriving(0.0) for request in trace.requests]


# -- names ----------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_bytes() -> None:
    """The digest was taken of an earlier run: a change means that published figures change."""
    trace = workload(
        "S-L", rate=7.5, num_requests=500, cv=2.0, high_fraction=0.1, num_clients=9, seed=3
    )
    text = repr(
        [
            (round(r.arrival_s, 6), r.num_prompt_tokens, r.num_output_tokens, r.rank, r.session)
            for r in trace.requests
        ]
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "71dc0a9ab1a9f0f1"


def test_another_rate_variation_or_number_keeps_the_requests() -> None:
    def drawn(rate: float, num_requests: int = 50, cv: float = 1.0) -> Trace:
        options = {"high_fraction": 0.3, "num_clients": 4}
        return workload("L-S", rate=rate, num_requests=num_requests, cv=cv, **options)

    slow, fast, uneven = drawn(1.0), drawn(4.0), drawn(4.0, cv=4)
    assert arrivals(slow) == pytest.approx([4 * at_s for at_s in arrivals(fast)])
    assert timeless(slow) == timeless(fast) == timeless(uneven)
    assert arrivals(uneven) != arrivals(fast)
    assert drawn(4.0, 200).requests[:50] == fast.requests


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "M-M"}, "M-M has no rate of its own"),
        ({"name": "M-N", "rate": 1.0}, "no workload 'M-N'; did you mean M-M"),
        ({"name": "M-M", "rate": 1.0, "seed": -1}, "seed must not be negative"),
        ({"name": "M-M", "rate": 1.0, "start_s": 0.0}, "start_s is for trace files"),
        ({"rate": 1.0, "speed": 2.0}, "give one of them"),
        ({"num_requests": 0}, "num_requests must be positive"),
        ({"start_s": 3.0, "duration_s": 1.0}, "its last one arrives at 6 s"),
    ],
)
def test_bad_options(file: str, options: dict[str, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        workload(**{"name": file, **options})  # type: ignore[arg-type]


# -- files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "times_s"),
    [
        ({}, [0.0, 1.0, 2.0, 6.0]),
        ({"rate": 1.0}, [0.0, 0.5, 1.0, 3.0]),
        ({"start_s": 0.5, "duration_s": 2.0}, [0.5, 1.5]),
        ({"num_requests": 2}, [0.0, 1.0]),
        ({"num_requests": 5, "start_s": 1.0, "duration_s": 2.0, "speed": 2.0}, [0, 0.5, 1, 1.5, 2]),
        ({"cv": 0.0, "speed": 2.0}, [1.0, 2.0, 3.0, 4.0]),
        ({"cv": 0.0, "rate": 4.0}, [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_a_file_scaled(file: str, options: dict[str, float], times_s: list[float]) -> None:
    trace = workload(file, **options)  # type: ignore[arg-type]
    assert arrivals(trace) == pytest.approx(times_s)


def test_clients_of_a_file_are_its_own_unless_others_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    row = '{"arrival_s":0,"num_prompt_tokens":1,"num_output_tokens":1,"rank":5,"session":"x"}\n'
    path.write_text('{"llumctl_recording":1}\n' + row)
    assert workload(str(path)).requests == [TraceRequest(0.0, 1, 1, 5, "x")]
    assert workload(str(path), high_fraction=0.0).requests == [TraceRequest(0.0, 1, 1, 0, "x")]
    assert workload(str(path), num_clients=1).requests == [TraceRequest(0.0, 1, 1, 5, "client-0")]


def test_a_repetition_shares_no_prefix_with_the_one_before() -> None:
    """The mean gap is 2 s, so the second round begins at 6 s; hashes go on behind 3. Requests that
    all arrive at once have no rate to scale."""
    assert with_requests(TRACE, 5).requests == [
        *TRACE.requests,
        TraceRequest(6.0, 10, 1, 0, "a", (5, 6)),
        TraceRequest(7.0, 20, 2, 1, "b", (5, 7)),
    ]
    trace = Trace("t", [TraceRequest(0.0, 1, 1)] * 3)
    with pytest.raises(ValueError, match="all requests of t arrive at once"):
        at_rate(trace, 2.0)
    assert arrivals(with_requests(trace, 5)) == [0.0] * 5


# -- too long ---------------------------------------------------------------------------------


def config(num_total_blocks: int = 4, max_model_len: int = 64) -> ModelConfig:
    return ModelConfig(
        16, num_total_blocks, 0, 8, 64, max_model_len, prefix_caching=False, mode="chunked"
    )


def test_too_long_requests_are_named() -> None:
    """4 blocks hold 64 tokens; the last one of a request needs no room."""
    sizes = [(40, 24), (40, 25), (64, 1), (63, 1), (1, 64)]
    trace = Trace("t", [TraceRequest(float(i), *size) for i, size in enumerate(sizes)])
    found = {late.index: str(late) for late in too_long(trace, config())}
    assert list(found) == [1, 2, 4]
    assert found[1] == "request 1 (at 1.000 s) wants 65 tokens, but max_model_len is 64"
    assert "has 64 prompt tokens, but max_model_len is 64 with the outputs" in found[2]
    assert too_long(trace, config(max_model_len=1000)) == [], "65 tokens need 64 slots"
    assert len(too_long(trace, config(num_total_blocks=3, max_model_len=1000))) == 5


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 6), st.integers(2, 100))
def test_what_is_not_too_long_runs_to_its_end(
    num_prompt: int, num_output: int, num_blocks: int, max_model_len: int
) -> None:
    size = config(num_blocks, max_model_len)
    late = too_long(Trace("t", [TraceRequest(0.0, num_prompt, num_output)]), size)
    engine = EngineModel(size, load_profile("a10-llama-7b"))
    num_emitted = 0
    with contextlib.suppress(ValueError):
        engine.add(ModelRequest("r", num_prompt, num_output))
    while engine.has_work():
        num_emitted += len(engine.step().emitted)
    assert (num_emitted < num_output) == bool(late)
