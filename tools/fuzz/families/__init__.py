"""What the fuzzer grows its input from: one file per family of requests.

A family of JSON requests draws a good one, which is then changed 0 to 5 times. The others draw
the bytes themselves.
"""

import random
from collections.abc import Callable
from typing import Any

from tools.fuzz.case import Case, encode, post
from tools.fuzz.families import (
    anthropic,
    bodies,
    files,
    grammars,
    messages,
    responses,
    routes,
    sampling,
    schemas,
    tags,
    tools,
    transfer,
)
from tools.fuzz.mutation import mutate

MAX_BODY_BYTES = 4 << 20
JSON: dict[str, Callable[[random.Random], tuple[str, dict[str, Any]]]] = {
    "anthropic": anthropic.draw,
    "grammars": grammars.draw,
    "messages": messages.draw,
    "responses": responses.draw,
    "routes": routes.draw,
    "sampling": sampling.draw,
    "schemas": schemas.draw,
    "tags": tags.draw,
    "tools": tools.draw,
}
RAW: dict[str, Callable[[random.Random], Case]] = {
    "asked": routes.asked,
    "bodies": bodies.draw,
    "files": files.draw,
    "transfer": transfer.draw,
}
NAMES = (*JSON, *RAW)
# A body of some megabytes takes longer than all else, so there are few of them.
WEIGHTS = {"asked": 0.4, "bodies": 0.4, "files": 0.4, "schemas": 2.0, "grammars": 2.0, "tags": 1.5}
NUM_CHANGES = (0, 0, 1, 1, 1, 2, 2, 3, 5)


def draw(seed: int, number: int, names: tuple[str, ...] = NAMES) -> Case:
    """The same for the same three, whatever was drawn before."""
    dice = random.Random(f"{seed}:{number}")
    family = dice.choices(names, [WEIGHTS.get(name, 1.0) for name in names])[0]
    if family in RAW:
        return RAW[family](dice)
    path, good = JSON[family](dice)
    num_changes = dice.choice(NUM_CHANGES)
    changed = mutate(good, dice, num_changes)
    body = encode(changed)
    if len(body) > MAX_BODY_BYTES:
        body = encode(good)
    return post(family, f"{family} with {num_changes} changes", path, body)
