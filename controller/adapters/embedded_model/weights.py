"""The weights: random layers that choose the words, and the grammar in a strip of their own.

The last len(STATES) of the HIDDEN channels hold the state of the last token, one-hot. The
embedding writes them, no layer does, and the output head reads the grammar's levels off them.
All else is random, so the choice within a kind depends on every token before.
"""

import numpy as np
from numpy.typing import NDArray

from controller.adapters.embedded_model.architecture import (
    HEAD_DIM,
    HIDDEN,
    INTERMEDIATE,
    NUM_HEADS,
    NUM_KV_HEADS,
    NUM_LAYERS,
)
from controller.adapters.embedded_model.grammar import STATES, levels, spread
from controller.adapters.embedded_model.vocabulary import vocabulary

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
