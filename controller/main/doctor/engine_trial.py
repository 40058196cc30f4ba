"""Moves live requests of every kind between two instances of a cluster, beside other streams, and
gathers what their clients read (`trial_judge.py` judges it).

It is a client like any other: requests go through the OpenAI endpoint, and moves are the orders of
`llumctl migrate`. Of each kind three requests that ask for the same run at the same time: two stay,
and one moves to and fro. Half of the moves compare digests of the KV blocks on both sides; only
the others are timed. The cluster must have no prefix cache: the instance to which a request returns
would still have its blocks, and a digest is of the blocks that are copied."""

import contextlib
import http.client
import itertools
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError
from controller.api.operations.on_instances import (
    Cordon,
    CordonRequest,
    Uncordon,
    UncordonRequest,
)
from controller.api.operations.on_requests import Migrate, MigrateRequest, MigrationReport
from controller.api.wire.requests import ENDED_STATES, LIVE_STATES, RequestState, RequestStatus
from controller.api.wire.status import InstanceStatus, SlowdownTrial
from controller.core.migration.refusals import reason_of
from controller.main.doctor.trial_judge import ENDED, MIGRATED, Evidence, Move
from controller.main.doctor.trial_stream import ReadStream

Report = Callable[[str], None]

PATH = "/v1/completions"
PATIENCE_S = 120.0
"""How long the trial waits for a token, or for a state of a request."""
POLL_S = 0.02
GAP_TOKENS = 8
"""How many tokens the client reads between two moves, and after the last one."""
MAX_TOKENS = 2000
"""The most tokens that a request makes: on a fast engine it must not end before it has moved."""
ENDING_TOKENS = 600
"""The most tokens of a request that is read to its end."""
LONG_PROMPT_TOKENS = 3000
LONG_PROMPT_S = 20.0
"""A long prompt is shorter if it would take longer to compute, as on a CPU."""
CACHE_SHARE = 1 / 8
"""The share of an instance's KV cache that one request may take, so that there is room to move."""
SHORT_TOKENS = 256
"""More than the tokens of a short prompt, whatever the tokenizer is."""
LEAST_CONTEXT_TOKENS = 512
OTHERS_PER_INSTANCE = 2
OLD_SHARE = 0.4
"""A stream beside the moves is replaced when it has made this share of its tokens."""
MAX_REFUSALS = 100
"""How often a move is tried again whose reason passes by itself, such as a prompt that is being
computed."""
MAX_TRIES = 3
MAX_FILLED = 64
"""The largest batch that is filled to let a request wait."""
MAX_REASON_CHARS = 200
STOP_CHARS = 8
QUIET_S = 0.75
MOVING_S = 1.0
NUM_ROUNDS = 2
ALL = "all"
"""Stands for the number of tokens of the output, which depends on the context."""
TEXT = (
    "the quiet river and its stones lead past the old mill where nobody has worked since the winter"
    " of the flood and the road to the harbour is open again for carts boats and people on foot"
)
NUM_WORDS = len(TEXT.split())
"""The length of a short prompt. A longer one repeats the text."""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 60},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 90, "maxItems": 120},
    },
    "required": ["name", "ages"],
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request. `ends`: the request ends by itself and is read to its end; any other is
    left when it has moved often enough."""

    name: str
    body: Mapping[str, Any]
    ends: bool = False


GREEDY = Kind("greedy", {"temperature": 0})
SEEDED = Kind("seeded", {"temperature": 1.0, "top_p": 0.95, "top_k": 50, "seed": 11})
KINDS = (
    SEEDED,
    Kind(
        "penalties",
        {
            "temperature": 0,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
        },
    ),
    Kind(
        "min tokens, bad words, logit bias",
        {
            "temperature": 0.8,
            "seed": 3,
            "ignore_eos": False,
            "min_tokens": ALL,
            "bad_words": [" the", " and"],
            "logit_bias": {"5": 1.5, "17": -2.0, "65": 1.0},
        },
    ),
    Kind("log probabilities", {"temperature": 0.7, "seed": 4, "logprobs": 3}),
    Kind(
        "JSON schema",
        {
            "temperature": 1.0,
            "seed": 2,
            "ignore_eos": False,
            "structured_outputs": {"json": SCHEMA},
        },
        ends=True,
    ),
    Kind(
        "regular expression",
        {
            "temperature": 1.0,
            "seed": 6,
            "ignore_eos": False,
            "min_tokens": ALL,
            "structured_outputs": {"regex": "([a-z]{1,4} [0-9]{1,4} )+"},
        },
    ),
)
STOP, LONG, QUEUED = "stop string", "long prompt", "waiting in a queue"


class TrialError(Exception):
    """The cluster did not do what every cluster does, so that the trial cannot go on."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request runs, and the cluster's id of the request."""

    request_id: str
    instance_id: str


@dataclass(slots=True)
class Steps:
    number: int = 0
    took_s: float = 0.0

    @property
    def mean_s(self) -> float:
        return self.took_s / self.number if self.number > 0 else 0.0


class Others:
    """Streams beside those that move. They stay where they are."""

    def __init__(self, begin: Callable[[], ReadStream], number: int, num_tokens: int) -> None:
        """`num_tokens`: how many tokens each of them has at most."""
        self._begin, self._number = begin, number
        self._old_tokens = OLD_SHARE * num_tokens
        self.streams: list[ReadStream] = []

    def renew(self) -> None:
        """Replaces streams that have ended, or may end before the next call."""
        young = []
        for stream in self.streams:
            if stream.ended or stream.num_tokens > self._old_tokens:
                stream.stop()
            else:
                young.append(stream)
        self.streams = young + [self._begin() for _ in range(self._number - len(young))]
        for stream in self.streams:
            if not _comes_to(stream, 1):
                raise TrialError(f"a stream beside the moves got no token: {problem_of(stream)}")

    def stop(self) -> None:
        _leave(self.streams)


class EngineTrial:
    """A trial on the cluster with this endpoint and this control API. `num_moves`: how often each
    request moves. `report` gets a sentence after each kind."""

    def __init__(
        self, url: str, client: ControlClient, report: Report, *, num_moves: int = 6
    ) -> None:
        self._url, self._client, self._report = url, client, report
        self._num_moves = num_moves
        self._numbers = itertools.count(1)
        self._name = f"trial-{secrets.token_hex(4)}"
        self._model, self._context_tokens = self._served()
        self._words_per_token, self._prompt_tokens_per_s = 1.0, 0.0
        self._places: dict[str, Place] = {}
        """Where the streams are that have moved, by their names."""
        instances = client.status().instances[:2]
        self._instances = [instance.id for instance in instances]
        cache_tokens = min((i.num_total_blocks or 0) * (i.block_size or 0) for i in instances)
        self._share_tokens = max(SHORT_TOKENS, int(CACHE_SHARE * cache_tokens))
        """The most tokens that one request may have."""
        num_others = OTHERS_PER_INSTANCE * len(self._instances)
        most = self._short_output
        self._others = Others(lambda: self._begin(GREEDY, NUM_WORDS, most), num_others, most)

    def run(self, kinds: Sequence[Kind] = KINDS, *, whole: bool = True) -> list[Evidence]:
        """What came of each kind, beginning with greedy requests. If none of those moved, no other
        kind is tried. `whole`: with the kinds whose requests differ in more than their sampling.
        Raises TrialError, LlumctlError."""
        found = [self._again(lambda: self._kind(GREEDY))]
        if not found[0].num_migrated:
            return found
        for kind in kinds:
            found.append(self._again(partial(self._kind, kind)))
            if kind is SEEDED and whole:
                found.append(self._again(partial(self._stopped, found[-1])))
        if whole:
            num_words = self._words_of(self._long_tokens)
            long, queued = Kind(LONG, GREEDY.body), Kind(QUEUED, SEEDED.body)
            found.append(self._again(lambda: self._kind(long, num_words, self._long_output)))
            found.append(self._again(lambda: self._queued(queued)))
        return found

    def close(self) -> None:
        """Leaves all streams."""
        self._others.stop()

    # -- requests of one kind --------------------------------------------------------------

    def _kind(
        self, kind: Kind, num_words: int = NUM_WORDS, max_tokens: int | None = None
    ) -> Evidence:
        """Three requests that ask for the same, of which the last one moves."""
        self._others.renew()
        with self._streams(kind, 3, num_words, max_tokens) as streams:
            *unmoved, moving = streams
            if (failed := self._begun(kind, streams)) is not None:
                return failed
            if kind is GREEDY:
                first = self._found(moving)
                self._words_per_token = num_words / max(1, first.num_prompt_tokens)
                self._prompt_tokens_per_s = first.num_prompt_tokens / (first.ttft_s or 1.0)
            return self._evidence(kind, unmoved, moving, self._to_and_fro(moving))

    def _again(self, attempt: Callable[[], Evidence]) -> Evidence:
        """Tries a kind again whose request ended before it had moved: on a busy machine a short
        answer may be over before the order to move it arrives."""
        for _ in range(MAX_TRIES):
            found = attempt()
            if found.problem or any(move.outcome != ENDED for move in found.moves):
                break
        num = found.num_migrated
        self._report(f"{found.kind}: {num} move{'s' * (num != 1)}")
        return found

    def _stopped(self, seeded: Evidence) -> Evidence:
        """The seeded requests again, which end at a string that is known from their answers."""
        text = seeded.unmoved[0].text if seeded.unmoved else ""
        string = late_string(text)
        if not string:
            why = "the seeded answer has no string that comes late and only once"
            return Evidence(STOP, problem=f"not tried: {why}")
        kind = Kind(STOP, {**SEEDED.body, "stop": [string]}, ends=True)
        return self._kind(kind, max_tokens=len(seeded.unmoved[0].token_ids) + GAP_TOKENS)

    def _queued(self, kind: Kind) -> Evidence:
        """A request that waits in the queue of an instance whose batch is full, moves to the other
        instance, and moves once more when it runs."""
        self._others.renew()
        here, there = self._instances
        limit = self._instance(here).max_running_reqs
        if limit is None or limit > MAX_FILLED:
            why = f"not tried: a batch takes {limit or 'any number of'} requests"
            return Evidence(kind.name, problem=f"{why}, too many to fill it")
        with self._streams(kind, 2) as unmoved, contextlib.ExitStack() as stack:
            if (failed := self._begun(kind, unmoved)) is not None:
                return failed
            fillers: list[ReadStream] = []
            stack.callback(_leave, fillers)
            with self._cordoned(there):
                # One filler too many would wait for its token, as long as the batch is full.
                while self._num_running(here, (*self._others.streams, *unmoved, *fillers)) < limit:
                    if len(fillers) == limit:
                        return Evidence(kind.name, problem="not tried: the batch did not fill")
                    fillers.append(self._begin(GREEDY, NUM_WORDS, self._short_output))
                    if not _comes_to(fillers[-1], 1):
                        return Evidence(kind.name, problem="not tried: a filler got no token")
                (moving,) = stack.enter_context(self._streams(kind, 1))
                if not self._comes(lambda: self._is_queued(moving, here)):
                    return Evidence(kind.name, problem="not tried: the request did not wait")
            moves = [self._move(moving, queued=True)]
            _leave(fillers)
            if _comes_to(moving, GAP_TOKENS):
                moves.append(self._move(moving, verify_kv=True))
            return self._evidence(kind, unmoved, moving, moves)

    def _to_and_fro(self, moving: ReadStream) -> list[Move]:
        moves: list[Move] = []
        for number in range(self._num_moves):
            if not _comes_to(moving, moving.num_tokens + GAP_TOKENS):
                break
            # The first move has a digest: if each move spoils the same block, later moves copy a
            # block that is spoilt already. Then there is one in either direction.
            moves.append(self._move(moving, verify_kv=number % 4 in (0, 3)))
            if reason_of(moves[-1].code).lasts:
                break
        return moves

    def _evidence(
        self, kind: Kind, unmoved: Sequence[ReadStream], moving: ReadStream, moves: Sequence[Move]
    ) -> Evidence:
        """Reads the moved request for some tokens more, or to its end, and then the others as
        far."""
        if kind.ends:
            moving.join(PATIENCE_S)
        else:
            _comes_to(moving, moving.num_tokens + GAP_TOKENS)
        moving.stop()
        moving.join(PATIENCE_S)
        for stream in unmoved:
            _comes_to(stream, moving.num_tokens)
            if kind.ends:
                stream.join(PATIENCE_S)
        problems = [problem_of(each) for each in (moving, *unmoved) if each.error is not None]
        return Evidence(
            kind.name,
            tuple(stream.choices[0] for stream in unmoved if stream.choices),
            moving.choices.get(0),
            tuple(moves),
            problem=f"a stream broke off: {problems[0]}" if problems else "",
            is_fault=True,
        )

    def _begun(self, kind: Kind, streams: Sequence[ReadStream]) -> Evidence | None:
        """None if all streams have their first token; otherwise why they have not."""
        for stream in streams:
            if not _comes_to(stream, 1):
                is_fault = code_of(stream) != http.HTTPStatus.BAD_REQUEST
                why = f"{'got no token' if is_fault else 'not served'}: {problem_of(stream)}"
                return Evidence(kind.name, problem=why, is_fault=is_fault)
        return None

    # -- moves -----------------------------------------------------------------------------

    def _move(self, stream: ReadStream, *, verify_kv: bool = False, queued: bool = False) -> Move:
        """Moves the request to the other instance. If it cannot move at the moment, this is tried
        again."""
        num_tokens = 0 if queued else stream.num_tokens
        for _ in range(MAX_REFUSALS):
            try:
                place = self._places.get(stream.name) or self._place(stream)
                if place is None:
                    return Move(ENDED, num_tokens)
                to = next(each for each in self._instances if each != place.instance_id)
                wanted = MigrateRequest(to=to, verify_kv=verify_kv, reason="doctor")
                report = self._client.send(Migrate(place.request_id, wanted))
            except LlumctlError as error:
                if self._has_ended(stream):
                    return Move(ENDED, num_tokens)
                return Move("failed", num_tokens, why=error.message)
            if report.outcome == MIGRATED:
                self._places[stream.name] = Place(place.request_id, to)
            if not (report.outcome == "refused" and reason_of(report.code).passes):
                break
            time.sleep(POLL_S)
        return _move_of(report, num_tokens, verify_kv=verify_kv, queued=queued)

    def _has_ended(self, stream: ReadStream) -> bool:
        """Whether the request has ended; its client may not have read the end yet."""
        if stream.ended:
            return True
        with contextlib.suppress(LlumctlError):
            return self._client.request(f"cmpl-{stream.name}").state in ENDED_STATES
        return False

    def _place(self, stream: ReadStream) -> Place | None:
        found = self._live(stream)
        if found is None or found.instance_id is None:
            return None
        return Place(found.id, found.instance_id)

    # -- how much moves slow other streams ---------------------------------------------------

    def slowdown(self) -> SlowdownTrial | None:
        """Compares the mean step while a long request moves to and fro with the mean step while
        nothing moves. The engines count their steps, since a client on a busy machine reads late.
        None if a stream ended meanwhile."""
        self._others.renew()
        kind, num_words = Kind(LONG, GREEDY.body), self._words_of(self._long_tokens)
        with self._streams(kind, 1, num_words, self._long_output) as (moving,):
            if not _comes_to(moving, 1):
                return None
            length = self._found(moving).num_prompt_tokens
            quiet, during = [Steps()], Steps()
            durations_s: list[float] = []
            moving_s = 0.0
            self._quiet(quiet[0])
            for _ in range(NUM_ROUNDS):
                with self._counted(during):
                    began_s = time.perf_counter()
                    while time.perf_counter() - began_s < MOVING_S:
                        move = self._move(moving)
                        if move.outcome != MIGRATED:
                            return None
                        durations_s.append(move.duration_s or 0.0)
                    moving_s += time.perf_counter() - began_s
                quiet.append(Steps())
                self._quiet(quiet[-1])
            if any(stream.ended for stream in (moving, *self._others.streams)):
                return None
        means_s = [steps.mean_s for steps in quiet]
        if not min(means_s) or not during.mean_s:
            return None
        step_s = sum(steps.took_s for steps in quiet) / sum(steps.number for steps in quiet)
        return SlowdownTrial(
            slowdown=round(during.mean_s / step_s - 1, 4),
            step_s=round(step_s, 6),
            quickest_step_s=round(min(means_s), 6),
            slowest_step_s=round(max(means_s), 6),
            num_streams=len(self._others.streams),
            num_moves=len(durations_s),
            move_s=round(median(durations_s), 6),
            moving_share=round(min(1.0, sum(durations_s) / moving_s), 4),
            num_tokens=length,
        )

    def _quiet(self, steps: Steps) -> None:
        with self._counted(steps):
            time.sleep(QUIET_S)

    @contextlib.contextmanager
    def _counted(self, steps: Steps) -> Iterator[None]:
        """Adds the steps that all instances make in the block."""
        before = self._client.status().instances
        yield
        for then, now in zip(before, self._client.status().instances, strict=True):
            steps.number += (now.num_steps or 0) - (then.num_steps or 0)
            steps.took_s += (now.busy_s or 0.0) - (then.busy_s or 0.0)

    # -- streams -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _streams(
        self, kind: Kind, number: int, num_words: int = NUM_WORDS, max_tokens: int | None = None
    ) -> Iterator[list[ReadStream]]:
        """Streams that ask for the same; they are left at the end of the block."""
        most = min(ENDING_TOKENS if kind.ends else MAX_TOKENS, self._short_output)
        streams: list[ReadStream] = []
        try:
            for _ in range(number):
                streams.append(self._begin(kind, num_words, max_tokens or most))
            yield streams
        finally:
            _leave(streams)

    def _begin(self, kind: Kind, num_words: int, max_tokens: int) -> ReadStream:
        words = itertools.islice(itertools.cycle(TEXT.split()), num_words)
        body = {
            "model": self._model,
            "prompt": " ".join(words),
            "max_tokens": max_tokens,
            "ignore_eos": True,
            **kind.body,
        }
        body = {key: max_tokens if value == ALL else value for key, value in body.items()}
        return ReadStream(self._url, PATH, body, f"{self._name}-{next(self._numbers)}-")

    # -- lengths -----------------------------------------------------------------------------

    @property
    def _short_output(self) -> int:
        """The longest output after a short prompt."""
        return min(self._share_tokens, self._context_tokens - SHORT_TOKENS)

    @property
    def _long_tokens(self) -> int:
        by_time = max(SHORT_TOKENS, int(LONG_PROMPT_S * self._prompt_tokens_per_s))
        return min(LONG_PROMPT_TOKENS, by_time, self._share_tokens, self._context_tokens // 2)

    @property
    def _long_output(self) -> int:
        """The longest output after a long prompt."""
        room = self._context_tokens - self._long_tokens - SHORT_TOKENS // 2
        return min(MAX_TOKENS, self._share_tokens, room)

    def _words_of(self, num_tokens: int) -> int:
        return max(NUM_WORDS, int(num_tokens * self._words_per_token))

    # -- what the cluster says -----------------------------------------------------------------

    def _served(self) -> tuple[str, int]:
        """The model's name, and how many tokens its context has. Raises TrialError."""
        connection = http.client.HTTPConnection(urlsplit(self._url).netloc, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/v1/models")
                (model, *_) = json.loads(connection.getresponse().read())["data"]
                name, context_tokens = str(model["id"]), int(model["max_model_len"])
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                raise TrialError(f"the endpoint does not name its model: {error}") from error
        if context_tokens < LEAST_CONTEXT_TOKENS:
            raise TrialError(
                f"a context of {context_tokens} tokens is too short for a trial;"
                f" max_model_len must be {LEAST_CONTEXT_TOKENS} or more"
            )
        return name, context_tokens

    def _live(self, stream: ReadStream) -> RequestStatus | None:
        """The stream's request; None if it has ended. Raises LlumctlError."""
        found: list[RequestStatus] = []

        def is_known() -> bool:
            live = self._client.requests(states=LIVE_STATES).requests
            found[:] = [each for each in live if stream.name in each.client_id]
            return stream.ended or any(each.instance_id is not None for each in found)

        self._comes(is_known)
        return found[0] if found else None

    def _found(self, stream: ReadStream) -> RequestStatus:
        found = self._live(stream)
        if found is None:
            raise TrialError(f"the cluster does not know a request that runs: {stream.name}")
        return found

    def _is_queued(self, stream: ReadStream, instance_id: str) -> bool:
        found = self._live(stream)
        return (
            found is not None
            and found.state is RequestState.WAITING
            and found.instance_id == instance_id
        )

    def _num_running(self, instance_id: str, streams: Sequence[ReadStream]) -> int:
        """How many requests run on the instance, as its status says. Waits until the status counts
        all of these streams that are there, since it may be older than their first tokens."""
        number = 0

        def has_news() -> bool:
            nonlocal number
            live = self._client.requests(states=LIVE_STATES).requests
            there = [each.client_id for each in live if each.instance_id == instance_id]
            known = [s for s in streams if not s.ended and any(s.name in name for name in there)]
            number = self._instance(instance_id).num_running_reqs or 0
            return number >= len(known)

        self._comes(has_news)
        return number

    def _instance(self, instance_id: str) -> InstanceStatus:
        return next(each for each in self._client.status().instances if each.id == instance_id)

    @contextlib.contextmanager
    def _cordoned(self, instance_id: str) -> Iterator[None]:
        """Lets the instance get no new requests for the time of the block."""
        self._client.send(Cordon(instance_id, CordonRequest(reason="doctor")))
        try:
            yield
        finally:
            self._client.send(Uncordon(instance_id, UncordonRequest(reason="doctor")))

    def _comes(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition comes true within the trial's patience."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (is_true := condition()) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return is_true


def _comes_to(stream: ReadStream, num_tokens: int) -> bool:
    """Waits until the stream has so many tokens. Returns False if it ends before, or hangs."""
    return stream.wait_until(lambda: stream.num_tokens >= num_tokens, PATIENCE_S)


def _leave(streams: Iterable[ReadStream]) -> None:
    for stream in streams:
        stream.stop()


def _move_of(report: MigrationReport, num_tokens: int, *, verify_kv: bool, queued: bool) -> Move:
    last = report.attempts[-1] if report.attempts else None
    return Move(
        report.outcome,
        num_tokens,
        verified=verify_kv,
        queued=queued,
        code=report.code,
        why=report.why,
        downtime_s=report.downtime_s,
        excess_s=report.excess_s,
        duration_s=last.duration_s if last is not None else None,
        num_blocks=report.num_blocks,
        num_bytes=report.num_bytes,
        copy_s=report.copy_time_s,
    )


def problem_of(stream: ReadStream) -> str:
    """Why the stream got no answer, on one line."""
    if stream.error is None:
        return "it ended at once" if stream.ended else f"nothing came for {PATIENCE_S:.0f} s"
    text = error_of(stream).get("message", stream.error)
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return " ".join(str(text).split())[:MAX_REASON_CHARS]


def code_of(stream: ReadStream) -> int:
    """The HTTP status of the answer, or that of an error in the stream."""
    code = error_of(stream).get("code", stream.http_status)
    return code if isinstance(code, int) else stream.http_status


def error_of(stream: ReadStream) -> Mapping[str, Any]:
    """The error in the form of the API; empty if it has another form."""
    found = stream.error
    with contextlib.suppress(ValueError):
        found = json.loads(found) if isinstance(found, bytes) else found
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else {}


def late_string(text: str) -> str:
    """A string of the text's last quarter that does not come before; empty if there is none."""
    for start in range(len(text) * 3 // 4, len(text) - STOP_CHARS):
        string = text[start : start + STOP_CHARS]
        if text.find(string) == start and string.isprintable() and string.strip() == string:
            return string
    return ""
