"""Streams of two real instances, and moves of them by the control API."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.engine_plan import FIRST_WORD_ID, EnginePlan
from benchmarks.servers import LlumctlServer
from benchmarks.token_stream import CONTEXT_TOKENS, StreamEndedError, TokenStream
from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations.on_requests import Migrate, MigrateRequest, MigrationReport
from controller.api.wire.requests import RequestStatus

OTHER_LENGTH = 128
# The length of the other streams' outputs: about all that the model takes after their prompts.
OTHER_TOKENS = CONTEXT_TOKENS - OTHER_LENGTH
# A prefill of 7,500 tokens runs in steps of 512, which slow decode steps about as much as on a GPU.
STEP_TOKENS = 512
# A stream with more than this share of its outputs is replaced before the next measurement.
OLD_SHARE = 0.4


class MigrationCluster(LlumctlServer):
    """A cluster without prefix caches: a move does not copy blocks that the destination's cache
    has, and there would be nothing to measure."""

    def __init__(self, plan: EnginePlan, name: str = "llumctl", checkout: Path | None = None):
        """Only the moves that are measured take place."""
        super().__init__(plan, name, checkout, settings={"migration.enabled": False})

    def _command(self) -> list[str]:
        arguments = ("enable_prefix_caching=false", f"max_num_batched_tokens={STEP_TOKENS}")
        return [*super()._command(), *(p for a in arguments for p in ("--engine-arg", a))]


class MovedStreams:
    """Begins streams, finds out where each one runs, and moves it."""

    def __init__(self, plan: Any, http: httpx.AsyncClient, control: ControlClient) -> None:
        self._model = plan.served_model_name
        self._vocab_size = plan.vocab_size
        self._http = http
        self.control = control
        self._dice = random.Random(1)

    def begin(self, num_tokens: int, num_output_tokens: int) -> TokenStream:
        words = range(FIRST_WORD_ID, self._vocab_size)
        prompt = self._dice.choices(words, k=num_tokens)
        return TokenStream(self._http, self._model, prompt, num_output_tokens)

    async def status(self, stream: TokenStream) -> RequestStatus:
        return await asyncio.to_thread(self.control.request, stream.reference)

    async def where(self, stream: TokenStream) -> str:
        """Raises StreamEndedError."""
        found = await self.status(stream)
        if found.instance_id is None:
            raise StreamEndedError(f"{found.id} runs nowhere: it is {found.state}")
        return found.instance_id

    async def move(
        self, stream: TokenStream, to: str, max_stages: int | None = None
    ) -> MigrationReport:
        """Raises StreamEndedError if the request was over before it could move, and RuntimeError
        if it did not move for another reason."""
        wanted = MigrateRequest(to=to, max_stages=max_stages, reason="benchmark")
        order = Migrate((await self.status(stream)).id, wanted)
        try:
            report = await asyncio.to_thread(self.control.send, order)
        except LlumctlError as error:
            found = await self.status(stream)
            if found.finish_reason is not None:
                raise StreamEndedError(f"{found.id} ended before its move") from error
            raise
        if report.outcome == "ended":
            raise StreamEndedError(f"{report.request_id} ended during its move")
        if report.outcome != "migrated":
            raise RuntimeError(f"the move ended as {report.outcome}: {report.code}")
        return report

    async def place(self, streams: Sequence[TokenStream], to: str) -> None:
        for stream in streams:
            await stream.wait_tokens(2)
            if await self.where(stream) != to:
                await self.move(stream, to)

    async def others(self, num_on_each: int) -> list[TokenStream]:
        """New streams that do not move, `num_on_each` on each instance."""
        found = [self.begin(OTHER_LENGTH, OTHER_TOKENS) for _ in range(2 * num_on_each)]
        await self.place(found[:num_on_each], "i-0")
        await self.place(found[num_on_each:], "i-1")
        return found


def is_old(stream: TokenStream) -> bool:
    return stream.num_said > OLD_SHARE * stream.num_tokens
