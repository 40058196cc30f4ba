"""LoRA adapters of the embedded model, made of random numbers."""

import json
from pathlib import Path

import numpy as np

from controller.adapters.embedded_model.model_folder import (
    HEAD_DIM,
    HIDDEN,
    LARGE,
    NUM_KV_HEADS,
)

RANK = 8


def make_adapter(
    folder: Path, seed: int, *, rank: int = RANK, module: str = "self_attn.v_proj"
) -> Path:
    """Writes the adapter into the folder, which is made if it does not exist."""
    from safetensors.numpy import save_file

    dice = np.random.default_rng(seed)
    weights = {}
    for layer in range(LARGE.num_layers):
        name = f"base_model.model.model.layers.{layer}.{module}"
        for part, shape in [("A", (rank, HIDDEN)), ("B", (NUM_KV_HEADS * HEAD_DIM, rank))]:
            weights[f"{name}.lora_{part}.weight"] = dice.normal(0, 0.2, shape).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    target = module.rpartition(".")[2]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [target]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
