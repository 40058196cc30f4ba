"""What orders share that change the cluster's spec, and so carry the revision that they change."""

from dataclasses import replace
from typing import Any, ClassVar, Self, cast


class SpecOrder:
    """Of a frozen dataclass with the request as `wanted`. One is sent after the other: each carries
    the revision that the one before it left."""

    __slots__ = ()
    wanted: Any
    lane: ClassVar[str] = "spec"
    takes_s: ClassVar[float] = 0.0

    @property
    def revision(self) -> int | None:
        return cast("int | None", self.wanted.if_revision)

    def at(self, revision: int) -> Self:
        wanted = self.wanted.model_copy(update={"if_revision": revision})
        return cast(Self, replace(cast(Any, self), wanted=wanted))
