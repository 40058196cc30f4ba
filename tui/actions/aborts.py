"""The order to end a request."""

from dataclasses import dataclass
from typing import ClassVar

from controller.api.client import ControlClient
from controller.api.wire.operations import AbortReport, AbortRequest
from tui.actions.order import Outcome, Plan


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str
    action_id: ClassVar[str] = "abort"
    takes_s: ClassVar[float] = 0.0
    revision: ClassVar[None] = None
    word: ClassVar[str] = "Abort"

    @property
    def title(self) -> str:
        return f"abort {self.request_id}"

    @property
    def command(self) -> str:
        return f"llumctl {self.title}"

    @property
    def lane(self) -> str:
        return self.request_id

    @property
    def question(self) -> str:
        return f"Abort {self.request_id}?"

    def at(self, _: int) -> "Abort":
        return self

    def plan(self, client: ControlClient) -> Plan:
        report = client.abort(self.request_id, AbortRequest(dry_run=True))
        where = f" on {report.instance_id}" if report.instance_id else ""
        facts = [f"{report.state}{where}", f"{report.num_output_tokens} tokens written"]
        if report.level:
            facts.append(f"priority {report.level}")
        lines = [f"{report.request_id}: {', '.join(facts)}"]
        lines.append("Its client gets an error. There is no undo.")
        if report.client_id and report.client_id != report.request_id:
            lines.append(f"  {report.request_id} is the client's {report.client_id}")
        others = [each for each in report.request_ids if each != report.request_id]
        lines += [f"  {each} ends with it" for each in others]
        return Plan(tuple(lines), Abort(report.request_id))

    def post(self, client: ControlClient, key: str) -> AbortReport:
        return client.abort(self.request_id, AbortRequest(), key=key)

    def told(self, client: ControlClient, key: str) -> AbortReport:
        return client.answer(AbortReport, key)

    def outcome(self, report: AbortReport) -> Outcome:
        more = len(report.request_ids) - 1
        others = f", and {more} more of its client's request" if more > 0 else ""
        return Outcome(f"aborted after {report.num_output_tokens} tokens{others}")
