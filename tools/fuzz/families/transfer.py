"""How a request gets there: headers, framing, slow senders, clients that leave midway."""

import json
import random
from dataclasses import replace

from tools.fuzz.case import HOST, Case, head, post
from tools.fuzz.mutation import mutate_bytes, odd_text

BODY = {"model": "embedded", "prompt": "the river", "max_tokens": 24, "stream": True}
LONG = BODY | {"max_tokens": 2000, "ignore_eos": True, "n": 4}
PATH = "/v1/completions"
HEADERS = (
    ("X-Request-Id", "fuzz-{n}"),
    ("X-Request-Id", "x" * 200),
    ("X-Request-Id", "é"),
    ("X-Llumctl-Priority", "high"),
    ("X-Llumctl-Priority", "no such"),
    ("Authorization", "Bearer x"),
    ("Authorization", "Basic " + "A" * 5000),
    ("Content-Encoding", "gzip"),
    ("Expect", "100-continue"),
    ("Accept-Encoding", "gzip"),
    ("Host", "evil.example"),
    ("Origin", "http://evil.example"),
    ("Connection", "close"),
    ("Connection", "upgrade"),
    ("Upgrade", "websocket"),
    ("Accept", "x" * 4000),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("Cookie", "a=b; " * 800),
    ("X-Forwarded-For", "1.2.3.4"),
    ("X-data-parallel-rank", "5"),
    ("X-Session-ID", "s"),
    ("Range", "bytes=0-1"),
)
TYPES = ("text/plain", "application/json; charset=utf-16", "", "multipart/form-data; boundary=x")


def draw(dice: random.Random) -> Case:
    kinds = (headers, chunked, slow, leaving, leaving, framing, broken)
    made = dice.choice(kinds)(dice)
    return replace(made, family="transfer")


def headers(dice: random.Random) -> Case:
    some = dice.sample(HEADERS, dice.choice((1, 2, 4)))
    odd = [(n, v.replace("{n}", str(dice.randrange(9)))) for n, v in some]
    if dice.random() < 0.3:
        text = odd_text(dice)[:8000].replace("\r", "").replace("\n", "")
        odd.append(("X-Odd", text.encode("latin-1", "ignore").decode("latin-1").replace("\0", "")))
    made = post("", "headers", PATH, json.dumps(BODY).encode(), *odd)
    if dice.random() < 0.2:
        kind = dice.choice(TYPES).encode()
        return replace(made, head=made.head.replace(b"application/json", kind))
    return replace(made, may_break_http=True)  # what is odd in a header need be no HTTP


def chunked(dice: random.Random) -> Case:
    body = json.dumps(BODY).encode()
    size = dice.choice((1, 7, 1000))
    pieces = [body[n : n + size] for n in range(0, len(body), size)]
    wire = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    is_broken = dice.random() < 0.3
    if is_broken:
        wire = mutate_bytes(wire, dice)
    own = (("Host", HOST.decode()), ("Content-Type", "application/json"))
    begun = head("POST", PATH, *own, ("Transfer-Encoding", "chunked"))
    cuts = tuple(dice.randrange(len(wire) + 1) for _ in range(dice.choice((0, 3))))
    # Of a broken one the rest may never come.
    leaves = 2.0 if is_broken else None
    return Case("", "chunked", begun, wire, cuts, 0.05, leaves, is_broken)


def slow(dice: random.Random) -> Case:
    made = post("", "slow", PATH, json.dumps(BODY | {"user": "x" * 200_000}).encode())
    places = tuple(dice.randrange(len(made.body)) for _ in range(dice.choice((1, 5, 20))))
    return replace(made, cut_at=places, pause_s=dice.choice((0.01, 0.1, 0.3)))


def leaving(dice: random.Random) -> Case:
    """Before the body is there, before the first token, or within the answer."""
    made = post("", "leaves", PATH, json.dumps(LONG | {"stream": dice.random() < 0.5}).encode())
    after_s = dice.choice((0.0, 0.005, 0.05, 0.3, 1.0))
    if dice.random() < 0.3:
        made = replace(made, body=made.body[: dice.randrange(len(made.body))])
    return replace(made, leaves_after_s=after_s)


def framing(dice: random.Random) -> Case:
    """Lengths that are wrong, twice, or beside chunks."""
    body = json.dumps(BODY).encode()
    odd = dice.choice(
        (
            [("Content-Length", str(len(body) - 5))],
            [("Content-Length", str(len(body) + 5))],
            [("Content-Length", str(len(body))), ("Content-Length", "3")],
            [("Content-Length", "-1")],
            [("Content-Length", "1" * 60)],
            [("Content-Length", str(1 << 40))],
            [("Content-Length", str(len(body))), ("Transfer-Encoding", "chunked")],
            [("Transfer-Encoding", "gzip, chunked")],
            [("Transfer-Encoding", "identity")],
            [],
        )
    )
    own = (("Host", HOST.decode()), ("Content-Type", "application/json"))
    return Case("", "framing", head("POST", PATH, *own, *odd), body, (), 0.0, 2.0, True)


def broken(dice: random.Random) -> Case:
    made = post("", "broken head", PATH, json.dumps(BODY).encode())
    changed = made.head
    for _ in range(dice.choice((1, 3))):
        changed = mutate_bytes(changed, dice)
    return replace(made, head=changed, leaves_after_s=2.0, may_break_http=True)
