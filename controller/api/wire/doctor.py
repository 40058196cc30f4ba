"""What `doctor -o json` prints."""

from enum import StrEnum

from controller.api.wire.base import AnswerModel, WireModel


class CheckResult(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(WireModel):
    """One finding of `doctor`. `cure` is empty when there is nothing to do."""

    name: str
    result: CheckResult
    what: str
    cure: str = ""


class DoctorReport(AnswerModel):
    checks: tuple[Check, ...]
