"""The state diagrams of docs/migration.md, drawn from the tables that the machines follow.

    python -m tools.move_diagrams

Events that leave the state as it is (a repetition, something late, a priority) are left out.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from controller.core.migration import destination, source
from controller.core.migration.protocol import Rule, Trigger, Verb


def mermaid(table: Mapping[tuple[Any, Trigger], Rule[Any]], over: Sequence[StrEnum]) -> str:
    """A Mermaid stateDiagram-v2 that begins in the first state of the class and ends in `over`."""
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for (state, trigger), rule in table.items():
        for target in rule.to:
            if target is not state:
                arrows.setdefault((state, target), []).append(_label(trigger))
    order = list(type(over[0]))
    lines = ["stateDiagram-v2", f"    [*] --> {order[0]}"]
    for (state, target), labels in sorted(
        arrows.items(), key=lambda arrow: [order.index(each) for each in arrow[0]]
    ):
        lines.append(f"    {state} --> {target}: {', '.join(sorted(labels))}")
    lines += [f"    {state} --> [*]" for state in over]
    return "\n".join(lines) + "\n"


def _label(trigger: Trigger) -> str:
    """A message in capitals, as in the text; anything else in words."""
    if isinstance(trigger, Verb):
        return trigger.name
    return re.sub(r"(?<!^)(?=[A-Z])", " ", trigger.__name__).lower()


DIAGRAMS = {
    "source": mermaid(source.TABLE, source.OVER),
    "destination": mermaid(destination.TABLE, destination.OVER),
}


def main() -> None:
    for name, diagram in DIAGRAMS.items():
        sys.stdout.write(f"<!-- {name} -->\n```mermaid\n{diagram}```\n<!-- /{name} -->\n\n")


if __name__ == "__main__":
    main()
