"""The embedded model as a folder in the layout of Hugging Face: shape, tokenizer and weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from controller.adapters.embedded_model.language import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    STATES,
    byte_symbol,
    levels,
    spread,
    vocabulary,
)

_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def build(folder: Path) -> None:
    """Fills an existing, empty folder (about 0.7 s, 37 MB). The same bytes every time."""
    documents = {
        "config.json": config(),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(_TEMPLATE, folder / _TEMPLATE.name)
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})


# -- the shape -------------------------------------------------------------------------------------
# The model's shape, and the configuration files that state it to vLLM.

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


# -- the tokenizer ---------------------------------------------------------------------------------
# The tokenizer: whole words where the vocabulary has them, single bytes everywhere else.


def tokenizer() -> Tokenizer:
    """A byte-level BPE without merges: a piece that is no token falls apart into bytes.

    Nothing is normalised and no token is added in front, so decoding what was encoded gives
    the same text, whatever it is.
    """
    names = [*SPECIAL_TOKENS]
    for token in vocabulary()[len(SPECIAL_TOKENS) :]:
        names.append("".join(byte_symbol(value) for value in token.data))
    ids = {name: index for index, name in enumerate(names)}
    result = Tokenizer(BPE(vocab=ids, merges=[], ignore_merges=True))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS]
    )
    return result


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_TOKENS,
    }


# -- the weights -----------------------------------------------------------------------------------
# The weights: random layers that choose the words, and the grammar in a strip of their own.
#
# The last len(STATES) of the HIDDEN channels hold the state of the last token, one-hot. The
# embedding writes them, no layer does, and the output head reads the grammar's levels off them.
# All else is random, so the choice within a kind depends on every token before.

Array = NDArray[np.float32]

_SEED = 20240611
_FREE = HIDDEN - len(STATES)  # channels that the layers write

# Standard deviations. These give attention scores a deviation of 2.5: for each head a few tokens
# stand out, and others for the next token. Embeddings are small beside what attention adds
# (about 1). Both make the choice hang on the context more than on the last token: the share of
# the final vector that is the same after every full stop is 0.15, against 0.65 with queries at
# 0.08 and embeddings at 1, where 4 of 32 greedy generations of 400 tokens repeated themselves.
# With queries at 0.16, heads see so few tokens that 2 of 335 in a prompt changed nothing.
_LAYER_STD = 0.08
_QUERY_STD = 0.12
_EMBEDDING_STD = 0.3
_STATE_VALUE = 1.0

# Root mean square of the last layer's output over all channels, measured.
_FINAL_RMS = 5.2


def tensors() -> dict[str, Array]:
    """The checkpoint: name -> float32 array, [out, in] for matrices."""
    random = np.random.RandomState(_SEED)  # a stream that numpy has frozen
    weights = {
        "model.embed_tokens.weight": _embedding(random),
        "lm_head.weight": _head(random),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(NUM_LAYERS):
        weights |= _layer(random, f"model.layers.{layer}")
    return weights


def _layer(random: np.random.RandomState, name: str) -> dict[str, Array]:
    query, key_value = NUM_HEADS * HEAD_DIM, NUM_KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (query, HIDDEN),
        "self_attn.k_proj": (key_value, HIDDEN),
        "self_attn.v_proj": (key_value, HIDDEN),
        "self_attn.o_proj": (HIDDEN, query),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    weights = {}
    for part, shape in shapes.items():
        std = _QUERY_STD if part.endswith("q_proj") else _LAYER_STD
        matrix = _noise(random, shape) * np.float32(std)
        if part.endswith(("o_proj", "down_proj")):
            matrix[_FREE:] = 0
        weights[f"{name}.{part}.weight"] = matrix
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{name}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    return weights


def _embedding(random: np.random.RandomState) -> Array:
    """[tokens, HIDDEN]"""
    tokens = vocabulary()
    matrix = _noise(random, (len(tokens), HIDDEN)) * np.float32(_EMBEDDING_STD)
    states = [STATES.index(token.state) for token in tokens]
    matrix[:, _FREE:] = np.eye(len(STATES), dtype=np.float32)[states] * _STATE_VALUE
    return matrix


def _head(random: np.random.RandomState) -> Array:
    """[tokens, HIDDEN]: unit input in the free channels gives each logit its kind's spread."""
    tokens = vocabulary()
    spreads = np.array([spread(token.kind) for token in tokens], np.float32)
    matrix = _noise(random, (len(tokens), HIDDEN)) * (spreads / np.float32(_FREE**0.5))[:, None]
    matrix[:, _FREE:] = np.array(levels(), np.float32).T * np.float32(_FINAL_RMS / _STATE_VALUE)
    return matrix


def _noise(random: np.random.RandomState, shape: tuple[int, int]) -> Array:
    """Uniform values of mean 0 and variance 1.

    Not normal ones: those go through the C library's logarithm, whose last bit differs between
    machines, and the files shall be equal everywhere.
    """
    return ((random.random_sample(shape) * 2 - 1) * 3**0.5).astype(np.float32)
