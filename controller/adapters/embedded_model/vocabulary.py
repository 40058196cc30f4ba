"""The vocabulary: every token with its id, and the two roles that it plays in the grammar.

Ids run in this order: special tokens, the 256 bytes, marks, words. A word comes in four
spellings, so that text in ordinary prose is one token per word: " river", " River", "river"
and "River".
"""

from dataclasses import dataclass
from functools import cache

from controller.adapters.embedded_model.word_list import words

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
    (grammar.py: shares run from states to kinds).
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
