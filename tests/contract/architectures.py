"""Requests on tiny models of other architectures than the built-in one, and moves between two
engines of each: `python -m tests.contract.architectures FOLDER [NAME...]` writes an `Outcome` as
JSON for each, a line each, into FOLDER, which gets the models too.

This is a program because vLLM makes its process groups once in a process, as the first model needs
them: a mixture of experts needs one more than the built-in model, so it is the first one here.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before vLLM is imported

from controller.adapters.embedded_model import ensure
from controller.adapters.vllm import process_setup
from controller.adapters.vllm.engine import VllmEngine
from controller.core.migration.refusals import MoveRefusal
from controller.ports.engine import ReservedBlocks
from tests.contract.moving import Readers, evict, num_free

OUTCOMES = "outcomes.jsonl"
MAX_TOKENS = 40
MOVED_AT = (2, 5, 9, 13, 20, 30)
"""A request moves when it has so many tokens."""
LOAD_TOKENS = 400
ENGINE = {
    "served_model_name": "tiny",
    "block_size": 32,
    "max_model_len": 1024,
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
    "max_position_embeddings": 2048,
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
    "rope_parameters": {
        # With default rotations vLLM's answers on a CPU depend on the batch.
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
DENSE = {"first_k_dense_replace": 4, "n_routed_experts": 4, "n_shared_experts": 1}
DELTA_NET = {
    "num_key_value_heads": 2,
    "head_dim": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
MAMBA = {
    "num_key_value_heads": 2,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
WINDOW = GROUPED | {"sliding_window": 64}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"] * 2}


BFLOAT16 = {"dtype": "bfloat16", "block_size": None}
"""Of these models vLLM chooses the size of a block."""
UNSTAGED = {
    "dtype": "bfloat16",  # with AMX the kernel takes no other
    "block_size": None,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 1024,
}
UNCACHED = {"block_size": None, "enable_prefix_caching": False}
"""vLLM itself ends where it has Mamba2 and a prefix cache on a CPU."""


DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
STAND_IN = """
from unittest.mock import MagicMock


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return MagicMock(name=name)
"""


SEEDED: Mapping[str, Any] = {"temperature": 1.0, "seed": 7}


@dataclass(frozen=True)
class Architecture:
    """`config`: transformers' class, none for the built-in model; with its arguments."""

    config: str | None
    sizes: Mapping[str, Any]
    engine: Mapping[str, Any]
    sampling: tuple[Mapping[str, Any], ...] = ({}, SEEDED)


ARCHITECTURES = {
    "mixture of experts": Architecture(
        "MixtralConfig", GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}, {}
    ),
    "latent attention": Architecture("DeepseekV2Config", LATENT | DENSE, UNSTAGED),
    "latent attention and experts": Architecture("DeepseekV2Config", LATENT | EXPERTS, UNSTAGED),
    "latent attention and experts, V3": Architecture(
        "DeepseekV3Config", LATENT | EXPERTS | {"topk_method": "noaux_tc"}, UNSTAGED
    ),
    "FP8 KV cache": Architecture(None, {}, {"kv_cache_dtype": "fp8"}),
    # vLLM itself gives a seeded request other tokens each time: where a draft is rejected, it draws
    # without the seed.
    "n-gram speculation": Architecture(
        None, {}, {"speculative_config": DRAFTS}, ({}, {"repetition_penalty": 1.1})
    ),
    "Gated DeltaNet and experts": Architecture(
        "Qwen3NextConfig",
        DELTA_NET
        | {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
        BFLOAT16,
    ),
    "Gated DeltaNet": Architecture("Qwen3_5TextConfig", DELTA_NET, BFLOAT16),
    "Mamba2": Architecture(
        "GraniteMoeHybridConfig",
        MAMBA
        | {
            "layer_types": ["mamba"] * 3 + ["attention"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
        },
        UNCACHED,
    ),
    "Mamba2 and experts": Architecture(
        "GraniteMoeHybridConfig",
        MAMBA
        | {
            "layer_types": ["mamba"] * 3 + ["attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 64,
        },
        UNCACHED,
    ),
    "Mamba2 beside attention": Architecture(
        "FalconH1Config", MAMBA | {"mamba_d_ssm": 256, "head_dim": 32}, UNCACHED
    ),
    "Mamba2, attention and MLPs": Architecture(
        "NemotronHConfig",
        {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "layers_block_type": ["mamba", "mlp", "mamba", "attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 1,
            "conv_kernel": 4,
            "expand": 2,
            "chunk_size": 64,
        },
        UNCACHED,
    ),
    "sliding window, attention sinks and experts": Architecture(
        "GptOssConfig",
        WINDOW | LAYERS | {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"dtype": "bfloat16"},
    ),
    "sliding window": Architecture("MistralConfig", WINDOW, {}),
    "sliding window and full attention": Architecture("Gemma3TextConfig", WINDOW | LAYERS, {}),
}


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of one kind.

    `refusal`: why no request can move. `different`: the requests that did not get the tokens of one
    that stayed. `num_tokens`: how many different tokens all requests got: if there are few, a
    difference would not show. `tail_shows`: whether a request whose tail is not copied gets other
    tokens, if there is a tail. `continued`: what is said of a request that was evicted. `demands`:
    the lengths of requests of which we say another demand than vLLM's admission has (ours, vLLM's).
    """

    name: str
    refusal: MoveRefusal | None
    num_moves: int
    different: list[str]
    num_tokens: int
    blocks_balanced: bool
    tail_shows: bool
    continued: bool
    demands: dict[int, tuple[int, int]]


class WithoutTail(Readers):
    def _copy(self, *args: Any) -> None:
        super()._copy(*args[:6])


class Trial:
    def __init__(self, name: str, built_in: Path, folder: Path) -> None:
        kind = ARCHITECTURES[name]
        model = built_in if kind.config is None else made(kind, built_in, folder / name)
        arguments = ENGINE | dict(kind.engine) | {"model": str(model)}
        self.name = name
        self.engines = [VllmEngine(arguments, lambda _: None) for _ in range(2)]
        self.readers = Readers(built_in, *self.engines)
        self.block_size = self.engines[0].block_size
        self.num_free = list(map(num_free, self.engines))
        self.num_moves = 0
        self.different: list[str] = []
        self.tokens: dict[str, list[int]] = {}
        """By request, the tokens of one that stayed."""

    def run(self) -> Outcome:
        here = self.engines[0]
        refusal = here.moves._parts.refusal
        asked = self._asked()
        for name, options in asked.items():
            self._answered(name, self.readers, here, options)
            self.tokens[name] = self.readers.told.pop(name).tokens
        for engine in self.engines:
            self._load(engine)
        if refusal is None:
            for name, options in asked.items():
                self._moved(name, options)
        self.readers.finish()
        # What the moves left in the prefix caches.
        for name, options in asked.items():
            for number, engine in enumerate(self.engines):
                again = self._answered(f"{name}, again {number}", self.readers, engine, options)
                self._compared(name, again, f"again {number}")
        balanced = list(map(num_free, self.engines)) == self.num_free
        continued = self._continued(*next(iter(asked.items())))
        tail_shows = refusal is None and self._tail_shows(*next(iter(asked.items())))
        demands = self._other_demands()
        for engine in self.engines:
            engine._core.model_executor.shutdown()
        return Outcome(
            self.name,
            refusal,
            self.num_moves,
            self.different,
            len({token for tokens in self.tokens.values() for token in tokens}),
            balanced,
            tail_shows,
            continued,
            demands,
        )

    def _other_demands(self) -> dict[int, tuple[int, int]]:
        engine, found = self.engines[0], {}
        parts = engine.moves._parts
        for length in (1, 40, self.block_size, 2 * self.block_size + 5, engine.max_model_len - 1):
            vllms = 0
            for manager in parts.managers:
                vllms += manager.get_num_blocks_to_allocate(
                    "nobody", length, [], 0, 0, length, apply_admission_cap=True, prefill_end=length
                )
                manager.req_to_blocks.pop("nobody", None)
            if (ours := parts.demand(length)) != vllms:
                found[length] = ours, vllms
        return found

    def _asked(self) -> dict[str, dict[str, Any]]:
        """By name, requests whose prompts end before, at and behind the end of a block."""
        size = self.block_size
        return {
            f"{length} {sampling or 'greedy'}": {
                "num_prompt_tokens": length,
                "max_tokens": MAX_TOKENS,
                "prompt": range(300 + length, 300 + 2 * length),
                **sampling,
            }
            for length in (40, size - 9, size - 4, size, 2 * size + 5)
            for sampling in ARCHITECTURES[self.name].sampling
        }

    def _load(self, engine: VllmEngine) -> None:
        """Other requests, which run beside the moved ones. With 16-bit floats vLLM's answers depend
        on what else is in the batch, moved or not: of 10 requests that stayed, 2 differed."""
        if ARCHITECTURES[self.name].engine.get("dtype") == "bfloat16":
            return
        for number, length in enumerate((20, 70)):
            name = f"load {self.engines.index(engine)} {number}"
            self.readers.add(name, engine, num_prompt_tokens=length, max_tokens=LOAD_TOKENS)

    def _moved(self, name: str, options: dict[str, Any]) -> None:
        """A request that moves six times; before each move another one is called off."""
        here, there = self.engines
        readers = self.readers
        readers.add(name, here, **options)
        for hop, num_tokens in enumerate(MOVED_AT):
            readers.run(name, num_tokens)
            to = there if readers.at[name] is here else here
            CALLED_OFF[hop % len(CALLED_OFF)](readers, name, to)
            found = readers.move(name, to, num_stages=hop % 3)
            self.num_moves += isinstance(found, ReservedBlocks)
        readers.run(name, MAX_TOKENS)
        self._compared(name, readers.told.pop(name).tokens, "moved")

    def _answered(
        self, name: str, readers: Readers, engine: VllmEngine, options: dict[str, Any]
    ) -> list[int]:
        readers.add(name, engine, **options)
        readers.run(name, MAX_TOKENS)
        return readers.told[name].tokens

    def _compared(self, name: str, tokens: list[int], how: str) -> None:
        if tokens != self.tokens[name]:
            self.different.append(f"{name}, {how}")

    def _continued(self, _name: str, options: dict[str, Any]) -> bool:
        """Whether an evicted request is said to go on with other tokens, perhaps. With drafts a
        seeded one always is."""
        here = self.engines[0]
        has_drafts = here._core.vllm_config.speculative_config is not None
        said = self._said_of_evicted(options)
        assert self._said_of_evicted(options | dict(SEEDED)) == (said or has_drafts)
        return said

    def _said_of_evicted(self, options: dict[str, Any]) -> bool:
        here = self.engines[0]
        self.readers.add("evicted", here, **options)
        self.readers.run("evicted", MOVED_AT[-1])
        here.take_events()
        evict(here, "evicted")
        self.readers.finish()
        said = {event.kind: event.continued for event in here.take_events()}
        assert said.keys() == {"evicted", "admitted"}
        return said["admitted"]

    def _tail_shows(self, name: str, options: dict[str, Any]) -> bool:
        here, there = self.engines
        if not here.moves._parts.tails:
            return True
        readers = WithoutTail(self.readers.model_path, here, there)
        readers.add(name, here, **options)
        readers.run(name, MOVED_AT[-1])
        readers.move(name, there)
        readers.run(name, MAX_TOKENS)
        return readers.told[name].tokens != self.tokens[name]


def reserved(readers: Readers, name: str, to: VllmEngine) -> None:
    """The move is called off once the destination has reserved blocks."""
    readers.reserve(name, to)
    to.moves.cancel(name)


def pinned(readers: Readers, name: str, to: VllmEngine) -> None:
    """It is called off after a stage was copied."""
    source = readers.at[name].moves
    source.pin(name, 0)
    readers.reserve(name, to)
    readers.step()
    to.moves.cancel(name)
    source.unpin(name)


def suspended(readers: Readers, name: str, to: VllmEngine) -> None:
    """It is called off when the request has stopped, which goes on after some steps of others."""
    source = readers.at[name].moves
    readers.reserve(name, to)
    assert source.suspend(name) is not None
    readers.step()
    readers.step()
    to.moves.cancel(name)
    source.resume(name)


CALLED_OFF = (reserved, pinned, suspended)


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


def stand_in_for_torchvision(folder: Path) -> None:
    """The file of Qwen3.5 imports torchvision for images, which the environment of CPUs lacks."""
    if find_spec("torchvision"):
        return
    for package in ("torchvision", "torchvision/transforms", "torchvision/transforms/v2"):
        (folder / package).mkdir(parents=True)
        for module in ("__init__", "functional", "io"):
            (folder / package / f"{module}.py").write_text(STAND_IN)
    info = folder / "torchvision-0.28.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    sys.path.append(str(folder))
    paths = filter(None, (os.environ.get("PYTHONPATH"), str(folder)))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # vLLM looks at models in a process


def replace_kernels_once() -> None:
    """vLLM replaces Triton's kernels by those for CPUs at the start of each engine, and cannot
    replace those for speculation twice in one process."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.register_triton_kernel_overrides
    once = cache(lambda: original())
    CpuPlatform.register_triton_kernel_overrides = classmethod(lambda _cls: once())


if __name__ == "__main__":
    place = Path(sys.argv[1])
    stand_in_for_torchvision(place / "packages")
    process_setup.prepare()
    replace_kernels_once()
    with (place / OUTCOMES).open("w") as file:
        file.writelines(
            f"{json.dumps(asdict(Trial(each, ensure(place), place).run()))}\n"
            for each in sys.argv[2:] or ARCHITECTURES
        )
