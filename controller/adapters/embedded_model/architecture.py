"""The model's shape, and the configuration files that state it to vLLM."""

from typing import Any

from controller.adapters.embedded_model.vocabulary import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    vocabulary,
)

# About 4 ms for a decode step of one request on one core (vLLM 0.32 on CPU, float32).
NUM_LAYERS = 4
HIDDEN = 256
NUM_HEADS = 8
NUM_KV_HEADS = 4
HEAD_DIM = 32
INTERMEDIATE = 1024
MAX_TOKENS = 8192

BOS_ID = SPECIAL_TOKENS.index(BOS)
EOS_ID = SPECIAL_TOKENS.index(EOS)


def config() -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": NUM_LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_TOKENS,
        "vocab_size": len(vocabulary()),
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
    }


def generation_config() -> dict[str, Any]:
    """generation_config.json: where a generation ends; sampling stays the caller's choice."""
    return {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
