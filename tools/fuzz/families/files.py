"""Forms that upload the lines of a batch, good and broken, in pieces, and clients that leave."""

import json
import random
from dataclasses import replace

from tools.fuzz.case import HOST, Case, head
from tools.fuzz.mutation import mutate_bytes, odd_text

PATH = "/v1/files"
BOUNDARY = "x-fuzz-x"
TYPES = (
    f"multipart/form-data; boundary={BOUNDARY}",
    "multipart/form-data",
    "multipart/form-data; boundary=",
    f'multipart/form-data; boundary="{BOUNDARY}',
    f"multipart/form-data; boundary={BOUNDARY * 40}",
    "application/x-www-form-urlencoded",
)
NAMES = ("in.jsonl", "", "../../run.json", "a\tb", "é" * 300, "x" * 5000)
PURPOSES = ("batch", "batch", "batch", "fine-tune", "", "x" * 5000)


def draw(dice: random.Random) -> Case:
    parts = [
        f'form-data; name="purpose"\r\n\r\n{dice.choice(PURPOSES)}',
        f'form-data; name="file"; filename="{dice.choice(NAMES)}"\r\n\r\n{_lines(dice)}',
    ]
    if dice.random() < 0.2:
        parts.append(dice.choice(parts))
    dice.shuffle(parts)
    body = "".join(f"--{BOUNDARY}\r\nContent-Disposition: {each}\r\n" for each in parts).encode()
    body += f"--{BOUNDARY}--\r\n".encode() if dice.random() < 0.9 else b""
    if dice.random() < 0.5:
        body = mutate_bytes(body, dice)
    kind = TYPES[0] if dice.random() < 0.7 else dice.choice(TYPES)
    own = (("Host", HOST.decode()), ("Content-Type", kind), ("Content-Length", str(len(body))))
    made = Case("files", "a form", head("POST", PATH, *own), body)
    if dice.random() < 0.2:
        cuts = tuple(dice.randrange(len(body) + 1) for _ in range(3))
        return replace(made, cut_at=cuts, pause_s=0.05)
    if dice.random() < 0.2:
        return replace(made, body=body[: dice.randrange(len(body))], leaves_after_s=0.05)
    return made


def _lines(dice: random.Random) -> str:
    line = {
        "custom_id": odd_text(dice)[:600],
        "method": "POST",
        "url": "/v1/completions",
        "body": {},
    }
    return (json.dumps(line) + "\n") * dice.choice((0, 1, 3, 200))
