"""What an operator's order for one live request asks of the request's frontend."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from controller.adapters.http.errors import ApiError
from controller.core.record.request_record import ENDED, RequestRecord, RequestState
from controller.runtime.controller.controller import Controller
from controller.runtime.controller.queries import MemberDiedError
from controller.runtime.messages.message import Message


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """`cannot`: the words before the reason why an order was not carried out; `may_still`: what a
    frontend that does not answer may yet do. Raises ApiError for a request that has ended."""

    controller: Controller
    record: RequestRecord
    cannot: str
    may_still: str

    def __post_init__(self) -> None:
        if self.record.state in ENDED:
            has = "was" if self.record.state is RequestState.ABORTED else "has"
            raise self._ended(f"it {has} {self.record.state}")

    async def ask(self, asked: Callable[[str], Message]) -> Any:
        """Sends the message that `asked` makes of a query id to the request's frontend, and returns
        the answer, whose `code` is empty. Raises ApiError."""
        frontend_id = self.record.frontend_id
        frontend = self.controller.roster.members.get(frontend_id)
        if frontend is None or not frontend.alive:  # it died while the audit log was written
            raise self._ended(f"its frontend {frontend_id} died")
        try:
            answer = await self.controller.queries.ask(frontend_id, asked)
        except TimeoutError as error:
            raise ApiError(
                504,
                "no_answer",
                f"frontend {frontend_id}, which has the request, did not answer in time;"
                f" it may still {self.may_still}",
                f"llumctl requests {self.record.request_id}",
            ) from error
        except MemberDiedError as error:
            raise self._ended(f"its frontend {frontend_id} died") from error
        if answer.code:
            raise self._ended("it ended meanwhile")
        return answer

    def _ended(self, why: str) -> ApiError:
        return ApiError(409, "ended", f"{self.cannot}: {why}", "llumctl requests")
