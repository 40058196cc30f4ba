"""Faults as people write them: `60:kill:i-3`, `120:slow-steps:i-2:1.5`; or a file."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

from controller.api.errors import UsageError
from controller.sim.setup import Fault
from llumctl.choices import nearest

KINDS = ("kill", "drain", "slow-steps", "slow-links")
WITH_FACTOR = ("slow-steps", "slow-links")
EXAMPLE = "--faults 60:kill:i-3,120:slow-steps:i-2:1.5"
MAX_FILE_BYTES = 1 << 20
_INSTANCE = re.compile(r"i-(0|[1-9]\d{0,6})", re.ASCII)


def parse(text: str, num_instances: int | None) -> tuple[Fault, ...]:
    """`text` is a list between commas, or the path of a file with a fault per line, in which `#`
    begins a comment. They may stand in any order. `num_instances`: None where they come and go.

    Raises:
        UsageError: one of them is wrong; says which, as FILE:LINE in a file.
    """
    path = Path(text)
    if ":" in text and not path.exists():
        entries: Iterable[tuple[str, str]] = [
            (f"--faults, number {number}", entry) for number, entry in enumerate(text.split(","), 1)
        ]
    else:
        entries = _lines(path)
    found = [_fault(entry.strip(), where, num_instances) for where, entry in entries]
    if not found:
        raise UsageError(f"--faults: {text} holds no fault", EXAMPLE)
    return tuple(found)


def _lines(path: Path) -> list[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise UsageError(f"--faults: {path} is larger than {MAX_FILE_BYTES} bytes", EXAMPLE)
        lines = raw.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--faults: cannot read {path}: {why}", EXAMPLE) from error
    stripped = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1))
    return [(f"{path}:{number}", line) for number, line in stripped if line]


def _fault(entry: str, where: str, num_instances: int | None) -> Fault:
    def wrong(why: str) -> UsageError:
        return UsageError(f"{where}: {entry[:60]!r}: {why}", EXAMPLE)

    parts = [part.strip() for part in entry.split(":")]
    if len(parts) not in (3, 4):
        raise wrong("a fault is SECONDS:KIND:INSTANCE, or SECONDS:KIND:INSTANCE:FACTOR")
    time_text, kind, instance_id = parts[:3]
    if kind not in KINDS:
        raise wrong(f"the kinds are {', '.join(KINDS)}{nearest(kind, KINDS)}")
    time_s = _number(time_text)
    if time_s is None or time_s < 0:
        raise wrong(f"{time_text!r} is no time in seconds from the beginning")
    known = _INSTANCE.fullmatch(instance_id)
    if num_instances is None and known is None:
        raise wrong("the instances are i-0, i-1 and so on, in the order of their launch")
    if num_instances is not None and (known is None or int(known[1]) >= num_instances):
        raise wrong(f"the instances are i-0 to i-{num_instances - 1}")
    if (kind in WITH_FACTOR) != (len(parts) == 4):
        raise wrong(
            f"{kind} takes no factor"
            if len(parts) == 4
            else f"{kind} takes a factor: {entry}:2 is half as fast"
        )
    factor = _number(parts[3]) if len(parts) == 4 else 1.0
    if factor is None or factor <= 0:
        raise wrong(f"{parts[3]!r} is no positive factor")
    return Fault(time_s, kind, instance_id, factor)


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
