"""The language that the embedded model writes: its words, its vocabulary of tokens, and a grammar
of two-token steps.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from statistics import NormalDist

# -- words -----------------------------------------------------------------------------------------
# The word list: which words the tokenizer knows whole, by part of speech.

_FILE = Path(__file__).with_name("words.txt")


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Part of speech -> its words, lower case save for "I", in the order of the file."""
    sections: dict[str, list[str]] = {}
    section: list[str] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            section += line.split()
    return {name: tuple(entries) for name, entries in sections.items()}


# -- the vocabulary --------------------------------------------------------------------------------
# The vocabulary: every token with its id, and the two roles that it plays in the grammar.
#
# Ids run in this order: special tokens, the 256 bytes, marks, words. A word comes in four
# spellings, so that text in ordinary prose is one token per word: " river", " River", "river"
# and "River".

BOS = "<|begin|>"
EOS = "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
SPECIAL_TOKENS = (BOS, EOS, *(f"<|{role}|>" for role in ROLES))

# Marks of several characters; those of one character are bytes.
_MARKS = {' "': "quote", '",': "comma", '"}': "bracket", '"]': "bracket", '":': "colon"}
_MARKS |= {'{"': "quote", ' {"': "quote", '["': "quote"}

_BYTE_STATES = dict.fromkeys("0123456789", "digit") | dict.fromkeys(".!?", "stop")
_BYTE_STATES |= dict.fromkeys("[]{}", "bracket") | dict.fromkeys(",;", "comma")
_BYTE_STATES |= {'"': "quote", ":": "colon", " ": "space", "\n": "start"}


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the vocabulary.

    `data` is the bytes that the token stands for. `state` is what it makes of the text when it
    is the last token; `kind` is what it counts as among the candidates for the next one
    (`SHARES` run from states to kinds).
    """

    data: bytes
    state: str
    kind: str


@cache
def vocabulary() -> tuple[Token, ...]:
    """All tokens; a token's id is its place. No two stand for the same bytes."""
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
    """The printable character under which byte-level tokenizers file a byte.

    Visible characters of Latin-1 stand for themselves; the other bytes, in order, take the
    characters from U+0100 on.
    """
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
    """The four spellings of "river": kinds noun, Noun, noun:plain and Noun:plain.

    Two states besides the parts of speech: a plain noun is what quoted strings are made of, and
    a capital adverb opens a sentence, so that no full stop follows.
    """
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
# `SHARES[state][kind]` is the share of the next token, relative to the others in its row.
# Structural marks have shares in prose too small to be seen, yet guided decoding lets only few
# tokens through, and among those the proportions count: after a digit, another digit against a
# comma or a closing brace. Measured with xgrammar: 160 of 160 generations under five schemas
# were valid JSON within 88 tokens.

# A generation ends only after a sentence. Measured over 64 chats: 290 tokens on average when
# greedy (median 229), 207 at temperature 1 (median 143).
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

# Shares of the kinds that a state does not list. JSON must not wander off into blanks, which
# its grammar allows without end, so blanks come after everything that makes progress.
_JSON = 1e-6
_WORD = 1e-8
_BYTE = 1e-9
_BLANK = 1e-13
_SPECIAL = 1e-17

# Spread of a logit around its level. At 4 the words of a kind weigh little more together than
# the best of them alone, so sampling at temperature 1 ends sentences about as often as greedy
# decoding (every 17 and every 13 tokens). A mark, alone in its kind, keeps to its share only
# when its own spread is small.
_WORD_SPREAD = 4.0
_MARK_SPREAD = 1.0
_MANY = 11


def levels() -> list[list[float]]:
    """Mean logit of each token after each state, [states, tokens], in nats.

    The best of n normal values lies near `spread * quantile(1 - 1/n)`; taking that off makes the
    best of a kind, whatever its size, compete at the logarithm of the share.
    """
    sizes = _sizes()
    return [
        [
            round(log(shares.get(kind, _unlisted(kind))) - spread(kind) * _best_of(sizes[kind]), 3)
            for kind in _kinds()
        ]
        for shares in SHARES.values()
    ]


def spread(kind: str) -> float:
    """Standard deviation of the logits of a kind's tokens, in nats."""
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
    """Expected largest of `count` standard normal values (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _unlisted(kind: str) -> float:
    if kind in ("special", "eos"):
        return _SPECIAL
    if kind in ("whitespace", " "):
        return _BLANK
    if kind in ('",', '"}', '"]', '":'):
        return _BYTE  # else they open strings, as '"' does, with a brace for a first character
    if kind == "digit" or any(mark in kind for mark in '"{}[],') or kind == ":":
        return _JSON
    return _BYTE if len(kind) == 1 or kind == "byte" else _WORD
