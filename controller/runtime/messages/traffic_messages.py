"""Messages about a recording of the cluster's traffic: the controller asks for it, and frontends
tell of their requests as those end."""

import msgspec

from controller.core.record.request_record import RequestState
from controller.runtime.messages.message import Message


class TrafficAsked(Message, frozen=True):
    """Controller to frontends, about once a second while a recording is on: tell of the requests
    that come from now on, with hashes under `key`, one per `num_hash_tokens` tokens. An empty key
    ends the recording."""

    key: bytes
    num_hash_tokens: int = 0


class RequestTraffic(msgspec.Struct, frozen=True, array_like=True):
    """A request that has ended, without its text, its tokens and its ids. `arrival_time_s` is in
    seconds since the epoch; `session` and `prefix_hashes` are as `prefix_hashes` makes them, the
    hashes joined."""

    arrival_time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    rank: int
    outcome: RequestState
    session: str
    prefix_hashes: bytes


class TrafficTold(Message, frozen=True):
    """Frontend to controller, several times a second while `key`'s recording is on. `num_before`:
    how many requests of the recording have ended here before these, told or lost. `num_live`:
    how many have not ended."""

    key: bytes
    frontend_id: str
    incarnation: int
    num_before: int
    num_live: int
    requests: tuple[RequestTraffic, ...]
