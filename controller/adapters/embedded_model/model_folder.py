"""The embedded model as a folder in the layout of Hugging Face: its language, shape, tokenizer and
weights. The language is a list of words, a vocabulary of tokens, and a grammar of two-token steps.
"""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

# -- words -----------------------------------------------------------------------------------------
# The word list: the words that are whole tokens, by part of speech.

_FILE = Path(__file__).with_name("words.txt")


@cache
def words() -> dict[str, tuple[str, ...]]:
    """The words of each part of speech, in the order of the file. All are in lower case except
    "I"."""
    sections: dict[str, list[str]] = {}
    section: list[str] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            section += line.split()
    return {name: tuple(entries) for name, entries in sections.items()}


# -- the vocabulary --------------------------------------------------------------------------------
# The vocabulary: every token with its id, its state and its kind (see `Token`).
#
# Ids run in this order: special tokens, the 256 bytes, marks, words. A word comes in four
# spellings, so that text in ordinary prose is one token per word: " river", " River", "river"
# and "River".

BOS = "<|begin|>"
EOS = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (BOS, EOS, *(f"<|{role}|>" for role in ROLES))

# Marks of several characters. Marks of one character are among the 256 bytes.
_MARKS = {' "': "quote", '",': "comma", '"}': "bracket", '"]': "bracket", '":': "colon"}
_MARKS |= {'{"': "quote", ' {"': "quote", '["': "quote"}

_BYTE_STATES = dict.fromkeys("0123456789", "digit") | dict.fromkeys(".!?", "stop")
_BYTE_STATES |= dict.fromkeys("[]{}", "bracket") | dict.fromkeys(",;", "comma")
_BYTE_STATES |= {'"': "quote", ":": "colon", " ": "space", "\n": "start"}


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the vocabulary.

    `data`: the bytes that the token stands for. `state`: the state in which the text is after this
    token. `kind`: what the token counts as when the next token is chosen. `SHARES[state][kind]` is
    the relative share of a kind after a text in that state."""

    data: bytes
    state: str
    kind: str


@cache
def vocabulary() -> tuple[Token, ...]:
    """All tokens. A token's id is its index. No two tokens stand for the same bytes."""
    tokens = [_special(name) for name in SPECIAL_TOKENS]
    tokens += [_byte(value) for value in range(256)]
    tokens += [Token(mark.encode(), state, mark) for mark, state in _MARKS.items()]
    known = {token.data for token in tokens}
    for part, entries in words().items():
        for word in entries:
            for token in _spellings(word, part):
                if token.data not in known:
                    known.add(token.data)
                    tokens.append(token)
    return tuple(tokens)


def byte_symbol(value: int) -> str:
    """The printable character that byte-level tokenizers use for a byte.

    Visible characters of Latin-1 stand for themselves; the other bytes, in order, take the
    characters from U+0100 on."""
    return _byte_symbols()[value]


@cache
def _byte_symbols() -> tuple[str, ...]:
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(value if value in visible else next(spare)) for value in range(256))


def _special(name: str) -> Token:
    return Token(name.encode(), "start", "eos" if name == EOS else "special")


def _byte(value: int) -> Token:
    char = chr(value)
    state = _BYTE_STATES.get(char, "other")
    if char.isspace() and char != " ":
        kind = "whitespace"
    elif state == "digit":
        kind = "digit"
    else:
        kind = char if char in _BYTE_STATES else "byte"
    return Token(bytes([value]), state, kind)


def _spellings(word: str, part: str) -> list[Token]:
    """The four spellings of a word; those of "river" have the kinds noun, Noun, noun:plain and
    Noun:plain.

    There are two states in addition to the parts of speech: quoted strings consist of plain nouns,
    and a capital adverb opens a sentence, so that no full stop follows it."""
    capital = word[0].upper() + word[1:]
    opening = "opener" if part == "adverb" else part
    alone = "quoted" if part == "noun" else None
    return [
        Token(f" {word}".encode(), part, part),
        Token(f" {capital}".encode(), opening, part.capitalize()),
        Token(word.encode(), alone or part, f"{part}:plain"),
        Token(capital.encode(), alone or opening, f"{part.capitalize()}:plain"),
    ]


# -- the grammar -----------------------------------------------------------------------------------
# A grammar of two-token steps: how likely each kind of token is after each state.
#
# Random weights alone give mojibake, no full stops, and JSON strings that never close. So the
# weights carry this table (model_folder.py): it fixes the parts of speech, the punctuation and the
# end, and the random layers choose the words.
#
# `SHARES[state][kind]` is the kind's share of the next token, relative to the other kinds in its
# row. In prose the shares of structural marks are too small to be seen. But guided decoding allows
# only a few tokens, and then the proportions among these matter: after a digit, another digit
# competes with a comma or a closing brace. Measured with xgrammar: 160 of 160 generations under
# five schemas were valid JSON within 88 tokens.

# A generation ends only after a sentence. Over 64 chats it had 290 tokens on average when greedy
# (median 229), and 207 at temperature 1 (median 143).
_END = 0.1

_PROSE = {"noun": 0.3, "determiner": 0.25, "preposition": 0.25, "verb": 0.1, ".": 0.1}
_PHRASE = {"determiner": 0.75, "adjective": 0.1, "preposition": 0.1, "conjunction": 0.05}

SHARES: dict[str, dict[str, float]] = {
    "start": {"Determiner:plain": 0.6, "Adverb:plain": 0.2, "Preposition:plain": 0.2},
    "stop": {"Determiner": 0.6, "Adverb": 0.2, "Preposition": 0.2, "eos": _END},
    "determiner": {"noun": 0.6, "adjective": 0.4},
    "adjective": {"noun": 0.9, "adjective": 0.1},
    "noun": {
        "verb": 0.33,
        "preposition": 0.15,
        "conjunction": 0.06,
        ".": 0.35,
        ",": 0.08,
        "?": 0.02,
        "!": 0.01,
    },
    "verb": {"determiner": 0.55, "preposition": 0.2, "adverb": 0.15, ".": 0.1},
    "adverb": {"determiner": 0.5, "preposition": 0.2, ".": 0.35},
    "opener": {"determiner": 0.7, ",": 0.15, "preposition": 0.15},
    "preposition": {"determiner": 0.85, "adjective": 0.15},
    "conjunction": {"determiner": 0.8, "adjective": 0.1, "adverb": 0.1},
    "comma": _PHRASE,
    "colon": _PHRASE | {' "': 0.02, " ": 0.01},
    "other": _PROSE,
    "bracket": _PROSE,
    "digit": _PROSE | {"digit": 0.003, ",": 0.005, "}": 0.005, "]": 0.005},
    "quote": {"noun:plain": 0.7, "Noun:plain": 0.3},
    "quoted": {'"': 0.4, '":': 0.4, '",': 0.2, '"}': 0.2, '"]': 0.1, " ": 0.2},
    "space": {"noun:plain": 1.0, '"': 1e-4},
}

STATES = tuple(SHARES)

# Shares of the kinds that a state does not list. JSON must not continue with blanks, which its
# grammar allows without end, so blanks have a smaller share than all tokens that make progress.
_JSON = 1e-6
_WORD = 1e-8
_BYTE = 1e-9
_BLANK = 1e-13
_SPECIAL = 1e-17

# The spread of logits around their level. At 4, all words of a kind together weigh little more than
# the best of them alone. So sampling at temperature 1 ends a sentence about as often (every 17
# tokens) as greedy decoding does (every 13 tokens). A mark is the only token of its kind, and has
# its share only if its spread is small.
_WORD_SPREAD = 4.0
_MARK_SPREAD = 1.0
_MANY = 11


def levels() -> list[list[float]]:
    """The mean logit of each token after each state, as [states, tokens], in nats.

    The best of n normal values lies near `spread * quantile(1 - 1/n)`. That value is subtracted
    from the logarithm of the share, so that the best token of a kind reaches that logarithm,
    however many tokens the kind has."""
    sizes = _sizes()
    return [
        [
            round(log(shares.get(kind, _unlisted(kind))) - spread(kind) * _best_of(sizes[kind]), 3)
            for kind in _kinds()
        ]
        for shares in SHARES.values()
    ]


def spread(kind: str) -> float:
    """The standard deviation of the logits of a kind's tokens, in nats."""
    if kind == "special":
        return 0.0
    return _WORD_SPREAD if _sizes()[kind] >= _MANY else _MARK_SPREAD


@cache
def _kinds() -> list[str]:
    return [token.kind for token in vocabulary()]


@cache
def _sizes() -> Counter[str]:
    return Counter(_kinds())


def _best_of(count: int) -> float:
    """The expected largest of `count` standard normal values (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _unlisted(kind: str) -> float:
    if kind in ("special", "eos"):
        return _SPECIAL
    if kind in ("whitespace", " "):
        return _BLANK
    if kind in ('",', '"}', '"]', '":'):
        return _BYTE  # otherwise they would put a brace first, because like '"' they open strings
    if kind == "digit" or any(mark in kind for mark in '"{}[],') or kind == ":":
        return _JSON
    return _BYTE if len(kind) == 1 or kind == "byte" else _WORD


_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def build(folder: Path, shape: "Shape | None" = None) -> None:
    """Writes the model into an existing, empty folder, in about 0.7 s and 37 MB. The bytes are the
    same every time. `shape`: without one, `LARGE`."""
    shape = shape or LARGE
    documents = {
        "config.json": config(shape),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(_TEMPLATE, folder / _TEMPLATE.name)
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(tensors(shape), folder / "model.safetensors", metadata={"format": "pt"})


# -- the shape -------------------------------------------------------------------------------------
# The model's shape, and the configuration files that state it to vLLM.


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between the embedded models. `final_rms`: the root mean square of the last
    layer's output over all channels, as measured."""

    num_layers: int
    seed: int
    final_rms: float


# A decode step of one request takes about 4 ms on one core (vLLM 0.32 on CPU, float32).
LARGE = Shape(num_layers=4, seed=20240611, final_rms=5.2)
SMALL = Shape(num_layers=2, seed=20261130, final_rms=3.7)
"""Another model with half of the layers: it answers otherwise, to the same tokens."""
SHAPES = {"embedded": LARGE, "embedded-small": SMALL}
"""The shapes by the name of the model."""

HIDDEN = 256
NUM_HEADS = 8
NUM_KV_HEADS = 4
HEAD_DIM = 32
INTERMEDIATE = 1024
MAX_TOKENS = 8192

BOS_ID = SPECIAL_TOKENS.index(BOS)
EOS_ID = SPECIAL_TOKENS.index(EOS)


def config(shape: Shape = LARGE) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": shape.num_layers,
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
    """The content of generation_config.json: it says where a generation ends, and leaves sampling
    to the caller."""
    return {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}


# -- the tokenizer ---------------------------------------------------------------------------------
# The tokenizer: whole words where the vocabulary has them, single bytes everywhere else.


def tokenizer() -> Tokenizer:
    """A byte-level BPE without merges. A piece of text that is not a token is split into bytes.

    Text is not normalised and no token is added in front, so decoding the encoded text gives the
    same text."""
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
    """The content of tokenizer_config.json."""
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
# The final len(STATES) of the HIDDEN channels hold the state of the latest token, one-hot. The
# embedding writes these channels, no layer changes them, and the output head turns them into the
# grammar's levels. All other weights are random, so the choice within a kind depends on every token
# before.

Array = NDArray[np.float32]

_FREE = HIDDEN - len(STATES)  # channels that the layers write

# Standard deviations. They give attention scores a deviation of 2.5: each head attends to a few
# tokens, and to different ones for the next token. Embeddings are small compared with what
# attention adds (about 1). Both make the choice depend on the context more than on the last token:
# the share of the final vector that is the same after every full stop is 0.15. With queries at 0.08
# and embeddings at 1 that share was 0.65, and 4 of 32 greedy generations of 400 tokens repeated
# themselves. With queries at 0.16, heads attend to so few tokens that 2 of the 335 tokens of a
# prompt changed nothing.
_LAYER_STD = 0.08
_QUERY_STD = 0.12
_EMBEDDING_STD = 0.3
_STATE_VALUE = 1.0


def tensors(shape: Shape = LARGE) -> dict[str, Array]:
    """The checkpoint: a float32 array for each name, with the shape [out, in] for matrices."""
    random = np.random.RandomState(shape.seed)  # a stream that numpy has frozen
    weights = {
        "model.embed_tokens.weight": _embedding(random),
        "lm_head.weight": _head(random, shape.final_rms),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(shape.num_layers):
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
    """The token embeddings, as [tokens, HIDDEN]."""
    tokens = vocabulary()
    matrix = _noise(random, (len(tokens), HIDDEN)) * np.float32(_EMBEDDING_STD)
    states = [STATES.index(token.state) for token in tokens]
    matrix[:, _FREE:] = np.eye(len(STATES), dtype=np.float32)[states] * _STATE_VALUE
    return matrix


def _head(random: np.random.RandomState, final_rms: float) -> Array:
    """The output head, as [tokens, HIDDEN]. Unit input in the free channels gives each logit the
    spread of its kind."""
    tokens = vocabulary()
    spreads = np.array([spread(token.kind) for token in tokens], np.float32)
    matrix = _noise(random, (len(tokens), HIDDEN)) * (spreads / np.float32(_FREE**0.5))[:, None]
    matrix[:, _FREE:] = np.array(levels(), np.float32).T * np.float32(final_rms / _STATE_VALUE)
    return matrix


def _noise(random: np.random.RandomState, shape: tuple[int, int]) -> Array:
    """Uniform values of mean 0 and variance 1.

    They are not normal values: those go through the C library's logarithm, whose last bit differs
    between machines, and the files must be the same everywhere."""
    return ((random.random_sample(shape) * 2 - 1) * 3**0.5).astype(np.float32)
