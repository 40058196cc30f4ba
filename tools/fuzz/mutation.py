"""Bad input grown from good: changes of JSON values, of texts and of bytes."""

import copy
import random
from typing import Any

BRACKETS = ("[]", "{}", "()", '{"a":', "((", "[[")
WORDS = ("a", "\\", '"', "'", "/", "\n", "\r\n", "\t", "\0", "\ud800", "🦊", "é", "ﷺ", "{{", "%s")
NUMBERS = (
    *(0, 1, -1, 2, 127, 128, 129, 500, 2000, 10_000, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**64),
    *(10**40, -(2**63), 0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1e308, 1e20),
)
COUNTS = (1, 2, 3, 10, 50, 300, 2000, 20_000)
SPECIALS = r"[](){}*+?|^$.\/-:;,=<>&!~%#@ '`\"_"
MAX_TEXT = 200_000
MAX_ITEMS = 30_000


def odd_text(dice: random.Random) -> str:
    kind = dice.randrange(7)
    if kind == 0:
        return ""
    if kind == 1:
        return dice.choice(WORDS) * dice.choice(COUNTS)
    if kind == 2:
        return "".join(dice.choice(SPECIALS + "abc019 ") for _ in range(dice.choice(COUNTS[:6])))
    if kind == 3:
        pair, count = dice.choice(BRACKETS), dice.choice((3, 60, 65, 1000, 100_000))
        return pair[:-1] * count + (pair[-1] * count if dice.random() < 0.7 else "")
    if kind == 4:
        return dice.choice(("null", "true", "-1", "1e999", "NaN", "0x10", "None", "__class__"))
    if kind == 5:
        return "".join(
            chr(dice.choice((dice.randrange(32, 127), dice.randrange(0xD000)))) for _ in range(20)
        )
    return dice.choice(("../../etc/passwd", "http://127.0.0.1:1/", "file:///etc/hosts", "data:,x"))


def odd_value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(10 if depth < 2 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return dice.random() < 0.5
    if kind <= 3:
        return dice.choice(NUMBERS)
    if kind <= 5:
        return odd_text(dice)
    if kind == 6:
        return [odd_value(dice, depth + 1) for _ in range(dice.choice((0, 1, 2, 5)))]
    if kind == 7:
        return {odd_text(dice)[:50]: odd_value(dice, depth + 1) for _ in range(dice.randrange(3))}
    if kind == 8:
        value = odd_value(dice, 2)
        return [value] * _copies(value, dice)
    return nested(dice.choice((5, 40, 63, 64, 100, 400)), dice)


def nested(depth: int, dice: random.Random) -> Any:
    value: Any = dice.choice((1, "x", None))
    for _ in range(depth):
        value = [value] if dice.random() < 0.5 else {dice.choice(("a", "items", "anyOf")): value}
    return value


def mutate_text(text: str, dice: random.Random) -> str:
    """One change. Bounded: a text that doubles at each change would be all there is."""
    if len(text) > MAX_TEXT:
        return text[: MAX_TEXT // 2]
    begin, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
    part = text[begin:end]
    kind = dice.randrange(9)
    if kind == 0:
        return text[:begin] + text[end:]
    if kind == 1:
        return (
            text[:end]
            + part * min(dice.choice(COUNTS[:6]), 1 + 20_000 // (len(part) + 1))
            + text[end:]
        )
    if kind == 2:
        return text[:begin] + dice.choice(SPECIALS) + text[begin:]
    if kind == 3:
        return text[:begin] + odd_text(dice) + text[begin:]
    if kind == 4:
        return (
            text[:begin]
            + "("
            + part
            + ")"
            + dice.choice(("*", "+", "?", "{2,}", "{1,300}"))
            + text[end:]
        )
    if kind == 5:
        return _other_number(text, dice)
    if kind == 6:
        return text[:begin] + part[::-1] + text[end:]
    if kind == 7:
        return text * min(dice.choice((2, 3, 40)), 1 + 20_000 // (len(text) + 1))
    return text[:begin] + dice.choice("|\n :=") + text[end:]


def _other_number(text: str, dice: random.Random) -> str:
    places = [n for n, char in enumerate(text) if char.isdigit()]
    if not places:
        return text + str(dice.choice(NUMBERS))
    place = dice.choice(places)
    return (
        text[:place] + str(dice.choice((0, 1, 9, 99, 300, 4000, 10_000, 10**9))) + text[place + 1 :]
    )


def mutate(value: Any, dice: random.Random, num_changes: int = 1) -> Any:
    """A changed copy of a JSON value."""
    value = copy.deepcopy(value)
    for _ in range(num_changes):
        holder = [value]
        places = _places(holder)
        _change(*dice.choice(places), dice)
        value = holder[0]
    return value


def _places(holder: list[Any]) -> list[tuple[Any, Any]]:
    """(container, key) of every value within."""
    found: list[tuple[Any, Any]] = []
    todo: list[Any] = [holder]
    while todo and len(found) < 5000:
        container = todo.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list):
                todo.append(container[key])
    return found


def _change(container: Any, key: Any, dice: random.Random) -> None:
    value = container[key]
    kind = dice.randrange(10)
    if kind == 0 and len(container) > 1:
        del container[key]
    elif kind == 1 and isinstance(container, dict):
        container[mutate_text(str(key), dice)[:10_000]] = container.pop(key)
    elif kind == 2 and isinstance(container, list):
        container[key:key] = [value] * _copies(value, dice)
    elif kind == 3:
        container[key] = [value]
    elif kind == 4 and isinstance(value, dict):
        value[dice.choice((*value, odd_text(dice)[:50]))] = odd_value(dice)
    elif kind == 5:
        container[key] = str(value)[:MAX_TEXT]
    elif isinstance(value, str) and kind < 9:
        container[key] = mutate_text(value, dice)
    elif isinstance(value, int | float) and kind < 9:
        container[key] = dice.choice((*NUMBERS, value * 10, -value, float(value), f"{value}"))
    else:
        container[key] = odd_value(dice)


def _copies(value: Any, dice: random.Random) -> int:
    size = len(str(value)) // 8 if isinstance(value, dict | list | str) else 0
    return min(dice.choice(COUNTS), max(1, MAX_ITEMS // (size + 1)))


def mutate_bytes(body: bytes, dice: random.Random) -> bytes:
    begin, end = sorted(dice.randrange(len(body) + 1) for _ in range(2))
    kind = dice.randrange(6)
    if kind == 0:
        return body[:begin]
    if kind == 1:
        return body[:begin] + dice.randbytes(dice.choice((1, 4, 300))) + body[begin:]
    if kind == 2:
        return body[:begin] + body[end:]
    if kind == 3:
        return body[:end] + body[begin:end] * dice.choice((1, 5, 100)) + body[end:]
    if kind == 4:
        return body[:begin] + bytes([dice.randrange(256)]) + body[begin + 1 :]
    return (
        body[:begin]
        + dice.choice((b"\\ud800", b"\xff\xfe", b"\0", b"{", b'"', b",", b"]"))
        + body[begin:]
    )
