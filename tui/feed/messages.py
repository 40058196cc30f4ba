"""What the dashboard hears: frames of the stream, their loss, and answers to what it asked."""

from dataclasses import dataclass

from controller.api.wire.requests import Explanation, RequestList
from controller.api.wire.stream import Frame, MemberLog


@dataclass(frozen=True, slots=True)
class Arrived:
    """A frame of the stream."""

    frame: Frame
    at_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended or could not be had."""

    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """An operator stopped the cluster, so its recording is complete. Later frames are another
    cluster's."""

    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class RequestsArrived:
    """An instance's requests, or why they could not be had."""

    instance_id: str
    found: RequestList | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class ExplanationArrived:
    """A request's life and how it stands now, or why that could not be had."""

    request_id: str
    found: Explanation | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class LogArrived:
    """The last lines of a member's log, or why they could not be had."""

    member_id: str
    found: MemberLog | None
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class RecordingFailed:
    """From here on nothing is recorded."""

    reason: str
    at_s: float
