"""Which engine arguments an instance starts with, in place of those of the cluster's start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineChange:
    """Engine arguments that stand in place of those that the cluster was started with, by name.

    `generation`: 0 for the arguments of the start; every other set of arguments has a number of its
    own, which is used once."""

    generation: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, given: Mapping[str, Any], generation: int) -> "EngineChange":
        """This change and `given` over it; an argument that is None is again as at the cluster's
        start. `generation`: the number if that is another set of arguments."""
        args = {key: each for key, each in {**self.args, **given}.items() if each is not None}
        if args == self.args:
            return self
        return EngineChange(generation, args) if args else AS_STARTED


AS_STARTED = EngineChange()
