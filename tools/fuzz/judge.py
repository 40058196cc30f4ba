"""What is wrong with an answer: pure functions of a case and what came back."""

import json
import re
from typing import Any, NamedTuple

from tools.fuzz.case import Case
from tools.fuzz.exchange import MAX_KEPT_BYTES, Answer

MAX_ERROR_BYTES = 8192
ERROR_FIELDS = {"message", "type", "param", "code"}
# While a cluster serves, nothing justifies another: no instance is lost, none has a deadline.
RETRY_STATUSES = (429, 503)


class Fault(NamedTuple):
    """`kind` is one of a few words; `what` tells it from others of the kind."""

    kind: str
    what: str

    @property
    def signature(self) -> str:
        """The same for the same defect: without numbers and ids, or what an exception says."""
        if self.kind == "traceback":
            return f"{self.kind}: {': '.join(self.what.split(': ')[:2])}"
        return f"{self.kind}: {re.sub(r'[0-9a-f]{8,}|[0-9]+', '#', self.what)[:160]}"


def judge(case: Case, answer: Answer) -> list[Fault]:
    if answer.left:
        return []
    if answer.late:
        return [Fault("late", f"no whole answer in {answer.taken_s:.0f} s: {case.path}")]
    if case.may_break_http and (answer.status is None or answer.status == 400):
        return []
    if answer.status is None:
        return [Fault("no answer", f"{case.path}: {answer.error or 'closed'}")]
    if not answer.is_whole:
        return [Fault("cut answer", f"{answer.status} {case.path}: {answer.error or 'closed'}")]
    if answer.status >= 400:
        return _judge_error(case, answer)
    return _judge_success(case, answer)


def _judge_error(case: Case, answer: Answer) -> list[Fault]:
    status = answer.status or 0
    where = f"{status} {case.path}"
    faults = []
    if status >= 500 and status != 501:
        faults.append(Fault("5xx", f"{where}: {_message(answer.body)}"))
    if status in RETRY_STATUSES and "retry-after" not in answer.headers:
        faults.append(Fault("error body", f"{where}: no Retry-After"))
    if why := wrong_shape(status, answer.body):
        faults.append(Fault("error body", f"{where}: {why}"))
    return faults


def wrong_shape(status: int, body: bytes) -> str:
    """Of an error, as README promises it; empty if it is right."""
    if len(body) >= MAX_ERROR_BYTES:
        return f"{len(body)} bytes"
    try:
        found = json.loads(body)
    except ValueError:
        return f"no JSON: {body[:80]!r}"
    # Anthropic's clients get a type beside it.
    if not isinstance(found, dict) or found.pop("type", "error") != "error":
        return f"not an error: {body[:80]!r}"
    if set(found) != {"error"}:
        return f"not one field, error: {body[:80]!r}"
    error = found["error"]
    if not isinstance(error, dict) or set(error) != ERROR_FIELDS:
        return f"other fields: {body[:80]!r}"
    if not isinstance(error["message"], str) or not error["message"]:
        return "no message"
    if "Traceback" in error["message"]:
        return "a traceback"
    if error["code"] != ("invalid_api_key" if status == 401 else status):
        return f"code {error['code']}"
    return ""


def _judge_success(case: Case, answer: Answer) -> list[Fault]:
    if len(answer.body) >= MAX_KEPT_BYTES:
        return []
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return _judge_stream(case, answer.body)
    if kind.startswith("application/json"):
        try:
            json.loads(answer.body)
        except ValueError:
            return [Fault("not JSON", f"{answer.status} {case.path}: {answer.body[:60]!r}")]
    return []


def _judge_stream(case: Case, body: bytes) -> list[Fault]:
    faults = []
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        try:
            event = json.loads(line.removeprefix(b"data: "))
        except ValueError:
            faults.append(Fault("not JSON", f"an event of {case.path}: {line[:60]!r}"))
            continue
        # The last event of a response tells its error too: null if there is none.
        if (error := event.get("error")) is not None:
            status = error.get("code") if isinstance(error, dict) else None
            if not isinstance(status, int) or status >= 500:
                faults.append(Fault("5xx", f"in a stream of {case.path}: {error}"[:300]))
    if "/completions" in case.path and not body.rstrip().endswith(b"data: [DONE]"):
        faults.append(Fault("cut answer", f"a stream of {case.path} without [DONE]"))
    return faults


def _message(body: bytes) -> Any:
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return body[:120]
