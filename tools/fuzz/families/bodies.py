"""Raw bodies: cut, huge, deep, in other encodings, with keys twice."""

import json
import random

from tools.fuzz.case import Case, post
from tools.fuzz.mutation import mutate_bytes

PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/responses", "/v1/messages")
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "cp037", "utf-7")
TEXT = {"model": "embedded", "prompt": "héllo", "max_tokens": 4}
CHAT = {"model": "embedded", "messages": [{"role": "user", "content": "hi é"}], "max_tokens": 4}


def draw(dice: random.Random) -> Case:
    path = dice.choice(PATHS)
    good = json.dumps(
        TEXT if path in ("/v1/completions", "/tokenize") else CHAT, ensure_ascii=False
    )
    kinds = {
        "changed bytes": lambda: changed(good.encode(), dice),
        "encoding": lambda: good.encode(dice.choice(ENCODINGS), "replace"),
        "deep": lambda: deep(dice),
        "huge": lambda: huge(dice),
        "keys twice": lambda: (good[:-1] + ', "model": "other", "max_tokens": 2}').encode(),
        "many keys": lambda: many_keys(dice),
        "a long number": lambda: (
            good[:-1] + f', "seed": {dice.choice("19")}{"0" * 300_000}}}'
        ).encode(),
        "many tokens": lambda: many_tokens(dice),
        "no object": lambda: dice.choice(
            (b"", b"[]", b"null", b"1", b'"x"', b" " * 100_000, b"{}{}")
        ),
        "escapes": lambda: (good[:-1] + f', "user": "{dice.choice(ESCAPES) * 2000}"}}').encode(),
    }
    name = dice.choice(sorted(kinds))
    return post("bodies", name, path, kinds[name]())


ESCAPES = ("\\u0000", "\\ud83e\\udd8a", "\\udc00", "\\u2028", "\\/", "\\x41", "\\\\")


def changed(body: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.choice((1, 1, 2, 5))):
        body = mutate_bytes(body, dice)
    return body


def deep(dice: random.Random) -> bytes:
    depth = dice.choice((60, 64, 65, 1000, 100_000))
    opened, closed = dice.choice((("[", "]"), ('{"a":', "}")))
    inner = opened * depth + "1" + (closed * depth if dice.random() < 0.7 else "")
    return f'{{"model": "embedded", "prompt": "x", "x": {inner}}}'.encode()


def huge(dice: random.Random) -> bytes:
    size = dice.choice((100_000, 1 << 20, (2 << 20) + 1, 8 << 20, 20 << 20))
    filler = dice.choice(("word ", "a", "é", "\\n", "<|x|>", "🦊"))
    text = filler * (size // len(filler.encode()))
    messages = f'"messages": [{{"role": "user", "content": "{text}"}}]'
    field = dice.choice((f'"prompt": "{text}"', messages, f'"user": "{text}", "prompt": "x"'))
    return f'{{"model": "embedded", "max_tokens": 2, {field}}}'.encode()


def many_keys(dice: random.Random) -> bytes:
    keys = ",".join(f'"k{n}": {n}' for n in range(dice.choice((100, 10_000, 300_000))))
    return f'{{"model": "embedded", "prompt": "x", {keys}}}'.encode()


def many_tokens(dice: random.Random) -> bytes:
    item = dice.choice(("1", "[1]", "-1", '"a"', "1.0", "true", "300", "{}", "[[]]", "1e400"))
    items = ",".join([item] * dice.choice((100, 5000, 30_000, 1_000_000, 4_000_000)))
    field = dice.choice(("prompt", "prompt", "prompt", "stop", "messages", "input", "tools", "x"))
    return f'{{"model": "embedded", "max_tokens": 2, "prompt": "x", "{field}": [{items}]}}'.encode()
