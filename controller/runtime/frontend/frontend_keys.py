"""A frontend's part in the limits of API keys: it counts its own use, tells the controller, which
decides, and goes by its share of the limits while the controller is away."""

import asyncio
from collections.abc import Callable

from controller.core.admission.api_keys import NO_KEYS, KeyUse, OwnLimits, Refusal, refusal
from controller.core.record.request_record import RequestRecord
from controller.core.scheduler_events import DispatchRequested, KeysTold
from controller.core.settings import KeyLimits
from controller.runtime.repeating import repeat

TELL_EVERY_S = 0.1


class FrontendKeys:
    """`tell` sends to the controller."""

    def __init__(
        self,
        frontend_id: str,
        tell: Callable[[KeysTold], None],
        own: OwnLimits = NO_KEYS,
    ) -> None:
        self._frontend_id = frontend_id
        self._tell = tell
        self._own = own
        self.limits = KeyLimits()
        self.use = KeyUse()
        self._has_keys = asyncio.Event()

    def began(self, request: DispatchRequested) -> DispatchRequested:
        if request.api_key:
            self._has_keys.set()
        return self.use.began(request, asyncio.get_running_loop().time())

    def ended(self, record: RequestRecord) -> None:
        self.use.ended(record.request_id, ran=record.instance_id is not None)

    def refusal_alone(self, request: DispatchRequested, num_frontends: int) -> Refusal | None:
        """Without a controller: why this frontend, one of so many, refuses the request."""
        if not request.api_key:
            return None
        limits = self.limits.of(request.api_key, self._own)
        return refusal(request, limits.shared_by(num_frontends))

    async def keep_telling(self) -> None:
        what = "the count of what API keys use"
        await repeat(TELL_EVERY_S, what, self._tell_news, self._has_keys)

    def _tell_news(self) -> None:
        if news := self.use.news(asyncio.get_running_loop().time()):
            self._tell(KeysTold(self._frontend_id, news))
