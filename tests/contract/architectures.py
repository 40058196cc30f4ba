"""Requests on tiny models of other architectures than the built-in one, and moves between two
engines of each: `python -m tests.contract.architectures FOLDER` writes an `Outcome` as JSON for
each, a line each, into FOLDER, which gets the models too.

This is a program because vLLM makes its process groups once in a process, as the first model needs
them: a mixture of experts needs one more than the built-in model, so it is the first one here.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before vLLM is imported

from controller.adapters.embedded_model import ensure
from controller.adapters.vllm import process_setup
from controller.adapters.vllm.engine import VllmEngine
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import ReservedBlocks
from tests.contract.moving import Readers

OUTCOMES = "outcomes.jsonl"
SAMPLING: tuple[Mapping[str, Any], ...] = ({}, {"temperature": 1.0, "seed": 7})
NUM_PROMPT_TOKENS, MAX_TOKENS = 90, 60
MOVED_AT = (3, 20, 41)
"""A request moves when it has so many tokens."""
ENGINE = {
    "served_model_name": "tiny",
    "block_size": 32,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "dtype": "float32",
    "enforce_eager": True,
    "scheduling_policy": "priority",
    "kv_cache_memory_bytes": 32 << 20,
}
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    # Large enough for answers that do not repeat one token.
    "initializer_range": 0.08,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 32}
EXPERTS = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
}
# vLLM's kernel for CPUs knows this one size of a latent head: 512 and 64.
LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
}
WINDOW = GROUPED | {"sliding_window": 64}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"] * 2}


@dataclass(frozen=True)
class Architecture:
    """`config`: transformers' class, none for the built-in model; with its arguments."""

    config: str | None
    sizes: Mapping[str, Any]
    engine: Mapping[str, Any]


ARCHITECTURES = {
    "mixture of experts": Architecture(
        "MixtralConfig", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}, {}
    ),
    "multi-head latent attention": Architecture(
        "DeepseekV2Config", LATENT | EXPERTS, {"dtype": "bfloat16"}
    ),
    "FP8 KV cache": Architecture(None, {}, {"kv_cache_dtype": "fp8"}),
    "sliding window": Architecture("MistralConfig", WINDOW, {}),
    "sliding window and full attention": Architecture("Gemma3TextConfig", WINDOW | LAYERS, {}),
}


@dataclass(frozen=True)
class Outcome:
    """`refusal`: why no request can move. `num_moves`: of all requests together. `as_unmoved`:
    whether each request got the tokens of one that stayed; `num_different`: how many different
    tokens those were."""

    name: str
    refusal: MoveRefusal | None
    num_moves: int
    as_unmoved: bool
    num_different: int


def tried(name: str, built_in: Path, folder: Path) -> Outcome:
    kind = ARCHITECTURES[name]
    model = built_in if kind.config is None else made(kind, built_in, folder / name)
    arguments = ENGINE | dict(kind.engine) | {"model": str(model)}
    here = VllmEngine(arguments, lambda _: None)
    there = VllmEngine(arguments | {"enable_prefix_caching": False}, lambda _: None)
    readers = Readers(built_in, here, there)
    refusal = here.moves._parts.refusal
    num_moves, as_unmoved, different = 0, True, set[int]()
    for sampling in SAMPLING:
        asked = {"num_prompt_tokens": NUM_PROMPT_TOKENS, "max_tokens": MAX_TOKENS, **sampling}
        readers.add("r", here, **asked)
        readers.finish()
        alone = readers.told.pop("r").tokens
        readers.add("r", here, **asked)
        for num_tokens in MOVED_AT:
            readers.run("r", num_tokens)
            to = there if readers.at["r"] is here else here
            found = readers.move("r", to, num_stages=num_tokens % 2) if refusal is None else None
            num_moves += isinstance(found, ReservedBlocks)
        readers.finish()
        as_unmoved &= readers.told.pop("r").tokens == alone
        different.update(alone)
    for engine in (here, there):
        engine._core.model_executor.shutdown()
    return Outcome(name, refusal, num_moves, as_unmoved, len(different))


def made(kind: Architecture, built_in: Path, folder: Path) -> Path:
    """The folder of a model with random weights and the tokenizer of the built-in model."""
    import torch
    import transformers

    untyped: Any = transformers
    known = json.loads((built_in / "config.json").read_text())
    shared = {name: known[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    config = getattr(untyped, kind.config or "")(**SIZES, **shared, **kind.sizes)
    torch.manual_seed(0)
    model = untyped.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    for file in built_in.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


if __name__ == "__main__":
    process_setup.prepare()
    place = Path(sys.argv[1])
    with (place / OUTCOMES).open("w") as file:
        file.writelines(
            f"{json.dumps(asdict(tried(each, ensure(place), place)))}\n" for each in ARCHITECTURES
        )
