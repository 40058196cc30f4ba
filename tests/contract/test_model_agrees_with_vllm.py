"""The engine model decides as the installed vLLM's scheduler does, step by step."""

import json
from dataclasses import replace
from pathlib import Path

from tests.contract.vllm_schedules import decisions_of_vllm
from tests.schedules import (
    RECORDED,
    Scenario,
    decisions_of_the_model,
    random_scenario,
)

NUM_AT_RANDOM = 40


def as_installed(scenario: Scenario) -> Scenario:
    """With the rule of the installed vLLM about a request that evicts itself."""
    from vllm import __version__

    config = replace(scenario.config, own_eviction_ends_step=__version__.startswith("0.32."))
    return replace(scenario, config=config)


def test_random_sequences(model_path: Path) -> None:
    steps = []
    for seed in range(100, 100 + NUM_AT_RANDOM):
        scenario = as_installed(random_scenario(seed))
        decisions = decisions_of_the_model(scenario)
        assert decisions == decisions_of_vllm(scenario, model_path), f"seed {seed}"
        steps += decisions
    # They are about something.
    assert sum(len(step.get("evicted", [])) for step in steps) > 100
    assert sum(any(step.get("cached", [])) for step in steps) > 20


def test_random_sequences_whose_steps_have_a_time(model_path: Path) -> None:
    """Without a prefix cache: vLLM's search for what is cached costs too much to be repeated in
    each step, so `Steps` knows it of the moment when a request comes."""
    differing = 0
    for seed in range(101, 101 + NUM_AT_RANDOM, 2):
        for step_time_s in (0.02, 0.03, 0.04):
            scenario = as_installed(random_scenario(seed, step_time_s=step_time_s))
            decisions = decisions_of_the_model(scenario)
            assert decisions == decisions_of_vllm(scenario, model_path), f"seed {seed}"
            differing += decisions != decisions_of_the_model(replace(scenario, step_time_s=None))
    assert differing > NUM_AT_RANDOM / 2


def test_the_recording_is_what_the_installed_vllm_does(model_path: Path) -> None:
    for entry in json.loads(RECORDED.read_text()):
        scenario = as_installed(recorded := Scenario.from_json(entry["scenario"]))
        expected = entry["decisions"] if scenario == recorded else decisions_of_the_model(scenario)
        assert expected == decisions_of_vllm(scenario, model_path), (
            f"{scenario.name}: record again with python -m tests.contract.vllm_schedules, "
            "and see in the diff what changed"
        )
