"""One run from its description to its figures."""

import pickle
from dataclasses import replace

import pytest

from controller.sim.run import CannotRunError, Load, Run, carry_out
from controller.sim.setup import ClusterSetup, sim_policy
from tests.unit.sim.runs import A10, SMALL

LOAD = Load("40,20", 4.0, 60)


def described(load: Load = LOAD, policy: str = "llumnix", seed: int = 1) -> Run:
    return Run(load, ClusterSetup(SMALL, sim_policy(policy), 2), seed)


def test_the_same_run_gives_the_same_figures_also_after_a_pickle_and_tells_its_progress() -> None:
    told: list[float] = []
    first = carry_out(described(), told.append)
    assert first == carry_out(pickle.loads(pickle.dumps(described())))
    assert first != carry_out(described(seed=2))
    assert told == sorted(told)
    assert told[0] == 0.0
    assert 0.5 < told[-1] <= 1.0


def test_a_request_that_is_too_long_is_named_or_left_out(tmp_path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.0000000,40,20\n"
        "2023-11-16 18:15:47.0000000,895,20\n"
        "2023-11-16 18:15:48.0000000,899,20\n"
    )
    with pytest.raises(CannotRunError, match=r"request 1 \(at 1.000 s\).*and 1 more"):
        carry_out(described(Load(str(file))))
    found = carry_out(described(Load(str(file), drop_too_long=True)))
    assert (found.num_requests, found.num_dropped) == (1, 2)
    tiny = replace(A10, num_total_blocks=2, max_model_len=24, watermark_ratio=0.0)
    setup = ClusterSetup(tiny, sim_policy("llumnix"), 1)
    with pytest.raises(CannotRunError, match="all requests are too long"):
        carry_out(Run(Load(str(file), drop_too_long=True), setup))
