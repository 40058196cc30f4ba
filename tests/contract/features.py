"""Which contract tests show what of each engine feature. `make compatibility` runs them, keeps
their outcome in outcomes.json, and writes docs/compatibility.md.

A test is written as in pytest, without the folder: `test_vllm_moves.py::test_name`. In brackets
stands a part of its parameters; without brackets all of them count.
"""

from dataclasses import dataclass

MOVED = "test_vllm_moves.py::test_the_reader_cannot_tell"
MANY = "test_vllm_moves.py::test_many_moves_with_few_blocks"
SECOND = "test_vllm_second_runner.py"
RANKS = "test_vllm_ranks.py::test_the_reader_cannot_tell"
OTHERS = "test_vllm_architectures.py::test_the_reader_cannot_tell"
ASYNC = "test_vllm_moves_async.py"
LORA = "test_vllm_moves_lora.py"
WHY_NO_ENGINE = "test_vllm_moves_source.py::test_why_an_engine_moves_nothing"
WHY_NO_REQUEST = "test_vllm_moves_source.py::test_why_a_request_does_not_move"
PRIORITIES = (
    "test_vllm_moves.py::test_a_priority_that_was_changed_travels",
    "test_vllm_moves.py::test_a_waiting_request_keeps_its_place_in_the_order",
)
DASH = "–"
RESIZED = "test_vllm_ranks.py::test_requests_move_between_engines_of_one_rank_and_of_two"
TWO_RUNNERS = f"{SECOND}::test_no_request_moves_between_two_runners"
THOUGHT = "test_vllm_moves.py::test_a_thought_that_the_first_runner_counts_stays_where_it_is"
APP = "test_vllm_frontend.py::test_the_app_serves"


@dataclass(frozen=True)
class No:
    """The feature does not do this. `why`: the code of the refusal, or a few words. `tests`: what
    shows that requests stay, if a test does."""

    why: str
    tests: tuple[str, ...] = ()


Claim = tuple[str, ...] | No
"""The tests of which each has to pass, or No. An empty tuple: not tested."""


@dataclass(frozen=True)
class Feature:
    """`exact`: a moved request gets the tokens of one that stayed."""

    name: str
    serves: Claim
    moves: Claim
    exact: Claim
    note: str = ""


NOT_TESTED: tuple[str, ...] = ()


def all_by(name: str, *tests: str, note: str = "") -> Feature:
    """These tests compare moved requests with requests that stayed."""
    return Feature(name, tests, tests, tests, note)


def stays(name: str, code: str, serves: Claim, *shown_by: str, note: str = "") -> Feature:
    """Requests with this feature are served and do not move."""
    return Feature(name, serves, No(code, shown_by), No(DASH), note)


FEATURES: dict[str, tuple[Feature, ...]] = {
    "How an engine runs": (
        all_by("One process, first model runner (V1)", f"{MOVED}[V1]"),
        all_by("One process, second model runner (V2)", f"{MOVED}[V2]"),
        all_by("Tensor parallel, workers of vLLM's own (`mp`), V1", RANKS, note="2 ranks"),
        all_by(
            "Tensor parallel, workers of vLLM's own (`mp`), V2",
            f"{SECOND}::test_between_engines_of_two_ranks",
            note="2 ranks",
        ),
        Feature("Tensor parallel, workers of Ray", NOT_TESTED, NOT_TESTED, NOT_TESTED),
        Feature(
            "Pipeline parallel",
            NOT_TESTED,
            NOT_TESTED,
            NOT_TESTED,
            note="on a CPU vLLM ends at its first step",
        ),
        Feature("Expert parallel", NOT_TESTED, NOT_TESTED, NOT_TESTED),
        all_by(
            "Speculative decoding by n-grams",
            f"{OTHERS}[n-gram speculation]",
            note="to a seeded request vLLM itself gives other tokens each time",
        ),
        stays("Speculative decoding by a draft model", "speculative", NOT_TESTED, WHY_NO_ENGINE),
        all_by(
            "Asynchronous scheduling, V2",
            f"{SECOND}::test_each_step_is_scheduled_while_the_one_before_it_runs",
            f"{SECOND}::test_evicted_and_replayed_with_a_step_under_way",
        ),
        Feature(
            "Asynchronous scheduling, V1",
            NOT_TESTED,
            (
                f"{ASYNC}::test_a_step_under_way_comes_in_before_the_cut[V1]",
                f"{ASYNC}::test_what_arrives_is_not_overwritten_by_a_step_under_way[V1]",
            ),
            NOT_TESTED,
            note="vLLM's scheduler with a worker that the tests play; a real one on a GPU, by"
            " `make test-gpu`",
        ),
        all_by(
            "Prefix caching",
            "test_vllm_moves.py::test_the_prefix_cache_spares_the_copy",
            "test_vllm_moves.py::test_copied_blocks_serve_others_by_the_prefix_cache",
        ),
        all_by(
            "Chunked prefill",
            "test_vllm_moves.py::test_served_by_the_next_step_beside_a_long_prefill",
            note="a request moves once its prompt is computed",
        ),
        all_by(
            "Evictions, and requests that wait",
            "test_vllm_moves.py::test_an_evicted_request_goes_on_elsewhere",
            "test_vllm_moves.py::test_a_waiting_request_moves_without_blocks",
            MANY,
        ),
        Feature("Priorities", PRIORITIES, PRIORITIES, No(DASH)),
        all_by(
            "LoRA adapters",
            f"{LORA}::test_a_request_with_an_adapter_moves_and_stays_if_the_adapter_is_unknown[V1]",
            f"{LORA}::test_a_request_with_an_adapter_moves_and_stays_if_the_adapter_is_unknown[V2]",
            f"{LORA}::test_an_adapter_of_the_same_name_takes_nothing_of_the_one_before[V1]",
            f"{LORA}::test_an_adapter_of_the_same_name_takes_nothing_of_the_one_before[V2]",
            note="on a CPU vLLM computes requests of the model itself wrongly while they run beside"
            " requests with an adapter",
        ),
    ),
    "Between engines that differ": (
        Feature(
            "One rank and two, with `migration.allow_inexact`",
            (RESIZED,),
            (RESIZED,),
            No("later tokens may differ by rounding"),
        ),
        stays("V1 and V2", "model_runner", (f"{MOVED}[V1]", f"{MOVED}[V2]"), TWO_RUNNERS),
        stays(
            "Two versions of vLLM",
            "vllm_version",
            NOT_TESTED,
            note="unless `migration.allow_inexact` is on; instead, requests are replayed",
        ),
    ),
    "Models": (
        all_by("Llama", MOVED),
        all_by("Mixture of experts", f"{OTHERS}[mixture of experts]"),
        all_by(
            "Multi-head latent attention (MLA): DeepSeek V2, V3",
            f"{OTHERS}[latent attention]",
            f"{OTHERS}[latent attention and experts]",
            f"{OTHERS}[latent attention and experts, V3]",
        ),
        all_by("FP8 KV cache", f"{OTHERS}[FP8 KV cache]"),
        Feature("Other quantised KV caches", NOT_TESTED, NOT_TESTED, NOT_TESTED),
        all_by("Sliding window in all layers: Mistral", f"{OTHERS}[sliding window]"),
        all_by(
            "Sliding window in some layers: Gemma 3",
            f"{OTHERS}[sliding window and full attention]",
        ),
        all_by(
            "Sliding window in some layers, attention sinks: GPT-OSS",
            f"{OTHERS}[sliding window, attention sinks and experts]",
        ),
        all_by(
            "Gated DeltaNet: Qwen3-Next, Qwen3.5",
            f"{OTHERS}[Gated DeltaNet and experts]",
            f"{OTHERS}[Gated DeltaNet]",
            note="a request that was evicted or replayed may continue with other tokens, moved or"
            " not",
        ),
        all_by(
            "Mamba2: Granite 4, Falcon-H1, Nemotron-H",
            f"{OTHERS}[Mamba2]",
            f"{OTHERS}[Mamba2 and experts]",
            f"{OTHERS}[Mamba2 beside attention]",
            f"{OTHERS}[Mamba2, attention and MLPs]",
            note="without a prefix cache, which vLLM does not have for them on CPUs",
        ),
        stays("Other groups of KV layers", "kv_groups", NOT_TESTED, WHY_NO_ENGINE),
        stays("Multimodal input", "multimodal", NOT_TESTED, WHY_NO_REQUEST),
        stays("Prompt embeddings", "prompt_embeds", NOT_TESTED, WHY_NO_REQUEST),
        stays("Pooling and embedding models", "pooling", NOT_TESTED, WHY_NO_REQUEST),
    ),
    "Requests": (
        all_by("Greedy", f"{MOVED}[greedy]"),
        all_by("Seeded sampling", f"{MOVED}[seeded]"),
        Feature(
            "Sampling without a seed",
            NOT_TESTED,
            NOT_TESTED,
            No("nothing to compare with"),
        ),
        all_by("Top-k, top-p", f"{MOVED}[seeded top-k, top-p]"),
        all_by("Penalties", f"{MOVED}[penalties]"),
        all_by("Log-probabilities", f"{MOVED}[logprobs]", f"{MOVED}[prompt logprobs]"),
        all_by(
            "Logit bias, allowed tokens, bad words",
            f"{MOVED}[logit bias]",
            f"{MOVED}[allowed tokens]",
            f"{MOVED}[bad words]",
        ),
        all_by("Minimum of tokens, stop tokens", f"{MOVED}[minimum of tokens]"),
        all_by("Cache salt", f"{MOVED}[cache salt]"),
        all_by(
            "Structured outputs (xgrammar)",
            f"{MOVED}[JSON schema]",
            f"{MOVED}[regular expression]",
            f"{MOVED}[choice]",
            note="other backends are refused",
        ),
        Feature(
            "Stop strings, several choices (`n`), tools",
            (APP, "test_vllm_frontend.py::test_calls_of_anthropic_s_messages"),
            NOT_TESTED,
            NOT_TESTED,
            note="of the frontend, which does not move with the request",
        ),
        all_by("Thinking budgets, V2", f"{SECOND}::test_the_budget_of_a_thought_travels"),
        stays(
            "Thinking budgets, V1",
            "thinking_budget",
            (THOUGHT,),
            THOUGHT,
            note="a request moves while it waits",
        ),
        stays("A prompt that is streamed in", "streamed_prompt", NOT_TESTED, WHY_NO_REQUEST),
    ),
}


def named_tests() -> list[str]:
    """All tests that a row names, once each, in the order of the rows."""
    claims = [
        claim.tests if isinstance(claim, No) else claim
        for features in FEATURES.values()
        for feature in features
        for claim in (feature.serves, feature.moves, feature.exact)
    ]
    return list(dict.fromkeys(test for tests in claims for test in tests))
