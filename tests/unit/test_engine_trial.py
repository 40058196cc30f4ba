"""`llumctl doctor --engine`: how evidence is judged and shown, what the trial does on an endpoint
of plain threads, and that its cluster is always taken down."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from controller.api.errors import LlumctlError
from controller.api.operations.on_instances import Cordon
from controller.api.operations.on_requests import Migrate, MigrationReport, MoveAttempt
from controller.api.settings.settings import ClusterTable, EmulatedTable, EndpointTable, Settings
from controller.api.state import run_state
from controller.api.wire.requests import RequestDetail, RequestList, RequestState, RequestStatus
from controller.api.wire.status import (
    Check,
    CheckResult,
    ClusterStatus,
    DoctorReport,
    EngineTrial,
    KindTrial,
    SlowdownTrial,
)
from controller.core.settings import MigrationSettings
from controller.main import down, up
from controller.main.checks import environment, preflight
from controller.main.checks.environment import Environment
from controller.main.doctor import doctor, engine_trial, trial_cluster
from controller.main.doctor.engine_trial import GREEDY, SEEDED, Kind, late_string
from controller.main.doctor.engine_trial import EngineTrial as Trial
from controller.main.doctor.trial_judge import Evidence, Move, difference, judge, trial_of
from controller.main.doctor.trial_stream import Read
from controller.main.plan import ClusterPlan
from llumctl.app import run
from tests.unit.cli_support import Cli, cluster, remember
from tests.unit.fake_controller import request_fields
from tools.synthetic_cluster import instance

OK, WARN, FAIL = CheckResult.OK, CheckResult.WARN, CheckResult.FAIL
RIGHT = list(range(40))
WRONG = [*range(20), *range(100, 120)]
NEEDED = {"enable_prefix_caching": False, "max_num_seqs": trial_cluster.MAX_NUM_SEQS}


def read(tokens: list[int] = RIGHT, reason: str | None = None, **fields: Any) -> Read:
    return Read(token_ids=tokens, finish_reason=reason, **fields)


MOVED = Move("migrated", 8, downtime_s=0.02, excess_s=0.005)
VERIFIED = Move("migrated", 16, verified=True, downtime_s=0.5, excess_s=0.485, num_blocks=3)
MISMATCH = Move("resumed", 16, verified=True, code="kv_mismatch")


def of(
    moved: Read | None = None,
    unmoved: tuple[Read, ...] = (read(), read()),
    moves: tuple[Move, ...] = (MOVED, VERIFIED),
    **fields: Any,
) -> Evidence:
    return Evidence("greedy", unmoved, moved or read(), moves, **fields)


# -- where two answers part ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (read(), read(RIGHT[:9]), None),
        (read(), read(WRONG), (20, "token")),
        (read(), read(RIGHT[:9], "stop"), (9, "end")),
        (read(reason="stop"), read(reason="length"), (40, "end")),
        (read(reason="stop", text="a"), read(reason="stop", text="b"), (40, "text")),
        (read(reason="stop", stop_reason="x"), read(reason="stop", stop_reason="y"), (40, "end")),
        (read(logprobs=[-1.0, -2.0]), read(logprobs=[-1.0, -2.00001]), None),
        (read(logprobs=[-1.0, -2.0]), read(logprobs=[-1.0, -2.1]), (1, "log probability")),
    ],
)
def test_where_two_answers_part(one: Read, other: Read, found: tuple[int, str] | None) -> None:
    for parted in (difference(one, other), difference(other, one)):
        assert (parted and (parted.index, parted.what)) == found


# -- the verdict -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "result", "tokens", "kv_equal", "words"),
    [
        (of(), OK, "equal", True, ""),
        (of(read(WRONG)), FAIL, "differ", True, "token 20 differs"),
        # One of the unmoved requests said the same.
        (of(read(WRONG), (read(), read(WRONG))), OK, "equal", True, ""),
        (of(read([0]), (read(WRONG), read(RIGHT[:30]))), WARN, "unknown", True, "no token after"),
        # Both are alike, but one stopped before the other had moved for the last time.
        (of(unmoved=(read(WRONG), read(RIGHT[:10]))), WARN, "unknown", True, "no token after"),
        (
            of(read([0, 7]), (read(WRONG), read())),
            WARN,
            "unsteady",
            True,
            "two unmoved requests differ at token 20, the moved one at 1",
        ),
        (of(read([0, 1, 9, *RIGHT])), WARN, "unsteady", True, "had 8 tokens before it moved"),
        # A digest of no blocks shows nothing: the destination's prefix cache had them all.
        (of(moves=(MOVED, replace(VERIFIED, num_blocks=0))), OK, "equal", None, ""),
        (of(moves=(MOVED, MISMATCH)), FAIL, "equal", False, "1 of 2 moves failed: the KV blocks"),
        (of(moves=(MISMATCH,)), FAIL, "unknown", False, "did not move: the KV blocks"),
        (
            of(moves=(Move("refused", 8, code="kv_groups"),)),
            FAIL,
            "unknown",
            None,
            "did not move: the model has a kind of KV layers",
        ),
        (of(moves=(MOVED, Move("failed", 9, why="gone"))), FAIL, "equal", None, "failed: gone"),
        (
            of(moves=(MOVED, VERIFIED, Move("refused", 30, code="no_blocks"))),
            WARN,
            "equal",
            True,
            "1 of 3 moves failed: the destination has not enough free blocks",
        ),
        (of(moves=(MOVED, Move("ended", 30))), OK, "equal", None, ""),
        (of(moves=(Move("ended", 8),)), WARN, "unknown", None, "before it could move"),
        (of(problem="a stream broke off: x"), FAIL, "equal", True, "broke off: x"),
        (Evidence("x", problem="not served: no"), WARN, "unknown", None, "not served: no"),
        (Evidence("x", problem="dead", is_fault=True), FAIL, "unknown", None, "dead"),
    ],
)
def test_verdicts(
    evidence: Evidence, result: CheckResult, tokens: str, kv_equal: bool | None, words: str
) -> None:
    found = judge(evidence)
    assert (found.result, found.tokens, found.kv_equal) == (result, tokens, kv_equal), found
    assert words in found.what
    assert bool(words) == bool(found.what)


def test_downtimes_are_those_of_moves_without_digests() -> None:
    slow = Move("migrated", 24, downtime_s=0.03, excess_s=0.01)
    found = judge(of(moves=(MOVED, VERIFIED, slow)))
    assert (found.downtime_median_s, found.downtime_worst_s) == (0.025, 0.03)
    assert found.step_s == 0.015
    assert (found.num_moves, found.num_digests, found.num_tokens) == (3, 1, 40)
    assert judge(of(moves=(MOVED, VERIFIED, VERIFIED))).num_equal_blocks == 6
    queued = judge(of(moves=(Move("migrated", 0, queued=True),)))
    assert (queued.result, queued.downtime_median_s, queued.step_s) == (OK, None, None)


def test_the_worst_kind_decides_and_an_engine_that_moves_nothing_is_a_finding() -> None:
    fine = trial_of([of(), of()], None, {})
    assert (fine.result, fine.problem) == (OK, "")
    assert trial_of([of(), of(read(WRONG)), of()], None, {}).result is FAIL
    assert trial_of([of(), Evidence("x", problem="not served")], None, {}).result is WARN
    died = trial_of([of()], None, {}, "i-0 died during the trial")
    assert (died.result, died.problem) == (FAIL, "i-0 died during the trial")
    none = trial_of([of(moves=(Move("refused", 8, code="kv_groups"),))], None, {})
    assert none.result is FAIL
    assert (
        none.problem
        == "no request can move: the model has a kind of KV layers that cannot be copied"
    )


# -- the table -------------------------------------------------------------------------------

TRIAL = EngineTrial(
    result=FAIL,
    kinds=(
        KindTrial(
            kind="greedy",
            result=OK,
            num_moves=6,
            tokens="equal",
            num_tokens=120,
            kv_equal=True,
            num_digests=3,
            num_equal_blocks=1282,
            downtime_median_s=0.0123,
            downtime_worst_s=0.02,
            step_s=0.0081,
        ),
        KindTrial(
            kind="seeded",
            result=FAIL,
            num_moves=1,
            tokens="differ",
            first_difference=17,
            kv_equal=False,
            num_digests=2,
            what="token 17 differs",
        ),
        KindTrial(kind="waiting in a queue", result=WARN, what="not tried: x"),
    ),
    slowdown=SlowdownTrial(
        slowdown=0.07,
        step_s=0.008,
        quickest_step_s=0.007,
        slowest_step_s=0.0095,
        num_streams=4,
        num_moves=9,
        move_s=0.03,
        moving_share=0.5,
        num_tokens=3000,
    ),
    facts={"vllm": "vllm 0.32.0"},
)
TABLE = """\
RESULT  REQUESTS            MOVES  TOKENS           KV BLOCKS          DOWNTIME   WORST   STEP
ok      greedy                  6  equal, 120       equal, 1,282 in 3    12.3ms  20.0ms  8.1ms
fail    seeded                  1  differ, from 17  DIFFER in 2               -       -      -
        token 17 differs
warn    waiting in a queue      0  -                -                         -       -      -
        not tried: x

slowdown  steps took 7% longer while 3,000 tokens moved to and fro beside 4 streams, 50% of the\
 time in 9 moves of 30.0ms; without moves they took 8.0ms (7.0ms to 9.5ms)
vllm      vllm 0.32.0
"""
FINE = Check(name="python", result=OK, what="3.11.7")


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[Settings] = []

    def tried(settings: Settings, _: Any) -> DoctorReport:
        asked.append(settings)
        return DoctorReport(checks=(FINE,), engine=TRIAL)

    monkeypatch.setattr(trial_cluster, "run", tried)
    words = ("doctor", "/", "--engine", "--engine-arg", "tensor_parallel_size=2")
    cli = Cli(capsys)
    assert cli(*words, code=1).out == TABLE
    assert (asked[0].cluster.model, asked[0].engine) == ("/", {"tensor_parallel_size": 2})
    told = json.loads(cli(*words, "-o", "json", code=1).out)
    assert told["engine"]["kinds"][1]["first_difference"] == 17
    assert "--cluster: the trial" in cli("doctor", "--engine", "--cluster", "prod", code=2).err


def test_a_failed_check_stands_before_the_table_or_in_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Check(name="memory", result=FAIL, what="1 GiB", cure="buy some")
    warned = full.model_copy(update={"result": WARN})
    fine = TRIAL.model_copy(update={"result": OK, "kinds": TRIAL.kinds[:1]})
    for report, code, first, lacking in (
        (DoctorReport(checks=(FINE, full)), 1, "RESULT  CHECK", "REQUESTS"),
        (DoctorReport(checks=(FINE, warned), engine=fine), 0, "RESULT  CHECK", "python"),
        (DoctorReport(checks=(FINE,), engine=fine), 0, "RESULT  REQUESTS", "python"),
    ):
        monkeypatch.setattr(trial_cluster, "run", lambda *_, report=report: report)
        out = Cli(capsys)("doctor", "--engine", code=code).out
        assert out.startswith(first)
        assert lacking not in out


# -- the trial on an endpoint of plain threads -----------------------------------------------


class Fake(ThreadingHTTPServer):
    """An endpoint whose requests make one token after the other, and a control API that moves them
    in no time. `token`: gives the token at an index, for a request that has moved so often.
    `limit`: how many requests run on an instance at a time. `lag_s`: how old its statuses are."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        token: Callable[[int, int], int] = lambda index, _: index,
        limit: int = 1024,
        lag_s: float = 0.0,
    ) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.token, self.limit, self.lag_s = token, limit, lag_s
        self.counts: list[tuple[float, dict[str, int]]] = [(0.0, {})]
        """How many requests ran on each instance, since when."""
        self.waited: list[str] = []
        """The requests that found no room."""
        self.cordoned = False
        """Whether i-1 is."""
        self.places: dict[str, str] = {}
        self.running: list[str] = []
        self.codes: dict[int, str] = {}
        """The code with which a move is refused, by its place among all orders."""
        self.orders: list[Migrate] = []
        self.num_moves: dict[str, int] = {}
        self.failing: set[str] = set()
        """Fields of requests that get 400, or an error with this code within the stream."""
        self.fails_late = False
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        """Says nothing of clients that left."""

    # What a ControlClient does.

    def status(self) -> ClusterStatus:
        num_steps = time.monotonic_ns()
        counted = {"num_steps": num_steps, "busy_s": num_steps / 1e9}
        return cluster(
            *(
                instance(
                    each,
                    max_running_reqs=self.limit,
                    num_running_reqs=self.counted(each),
                    **counted,
                )
                for each in ("i-0", "i-1")
            )
        )

    def num_running(self, instance_id: str) -> int:
        return sum(self.places.get(name) == instance_id for name in list(self.running))

    def counted(self, instance_id: str) -> int:
        told = [counts for at, counts in list(self.counts) if at <= time.monotonic() - self.lag_s]
        return told[-1].get(instance_id, 0)

    def count(self) -> None:
        counts = {each: self.num_running(each) for each in ("i-0", "i-1")}
        self.counts.append((time.monotonic(), counts))

    def requests(self, **_: Any) -> RequestList:
        live = tuple(
            RequestStatus(
                **request_fields(
                    name,
                    instance_id=place,
                    state=RequestState.RUNNING if name in self.running else RequestState.WAITING,
                )
            )
            for name, place in list(self.places.items())
        )
        return RequestList(requests=live, num_matching=len(live))

    def enter(self, name: str) -> None:
        """Waits until there is room for the request where it is."""
        self.num_moves[name] = 0
        self.places[name] = "i-0" if self.cordoned or len(self.places) % 2 == 0 else "i-1"
        if self.num_running(self.places[name]) >= self.limit:
            self.waited.append(name)
        while self.num_running(self.places[name]) >= self.limit:
            time.sleep(0.001)
        self.running.append(name)
        self.count()

    def leave(self, name: str) -> None:
        self.running.remove(name)
        del self.places[name], self.num_moves[name]
        self.count()

    def request(self, reference: str) -> RequestDetail:
        name = reference.removeprefix("cmpl-")
        state = RequestState.RUNNING if name in self.num_moves else RequestState.FINISHED
        return RequestDetail(**request_fields(name, state=state))

    def send(self, order: Any) -> MigrationReport | None:
        if not isinstance(order, Migrate):
            self.cordoned = isinstance(order, Cordon)
            return None
        code = self.codes.get(len(self.orders), "")
        self.orders.append(order)
        if not code:
            self.num_moves[order.request_id] += 1
            self.places[order.request_id] = order.wanted.to or ""
            self.count()
        attempt = MoveAttempt(migration_id="m", to_instance_id="i-1", outcome="x", duration_s=0.01)
        return MigrationReport(
            request_id=order.request_id,
            client_id="",
            from_instance_id="i-0",
            outcome="refused" if code else "migrated",
            code=code,
            num_blocks=2,
            downtime_s=None if code else 0.004,
            excess_s=0.001,
            attempts=(attempt,),
        )

    @contextmanager
    def trial(self, num_moves: int = 4) -> Iterator[Trial]:
        client: Any = self
        trial = Trial(self.url, client, lambda _: None, num_moves=num_moves)
        try:
            yield trial
        finally:
            trial.close()
            self.shutdown()
            self.server_close()


class Answering(BaseHTTPRequestHandler):
    server: Fake

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "model", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake, name = self.server, self.headers["X-Request-Id"]
        refused = fake.failing & body.keys()
        error = {"error": {"message": f"no {refused}", "code": 400}}
        if refused and not fake.fails_late:
            self.answer(400, error)
            return
        self.send_response(200)
        self.end_headers()
        if refused:
            self.wfile.write(b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n")
            return
        fake.enter(name)
        try:
            for index in range(body["max_tokens"]):
                token = fake.token(index, fake.num_moves[name])
                self.say({"index": 0, "text": f"{token} ", "token_ids": [token]})
                time.sleep(0.001)
            self.say({"index": 0, "text": "", "token_ids": [], "finish_reason": "length"})
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # the client left
            pass
        finally:
            fake.leave(name)

    def say(self, choice: dict[str, Any]) -> None:
        chunk = {"choices": [{"finish_reason": None, **choice}]}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def test_requests_that_say_the_same_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_trial, "QUIET_S", 0.1)
    monkeypatch.setattr(engine_trial, "MOVING_S", 0.1)
    fake = Fake()
    with fake.trial() as trial:
        greedy, seeded = trial.run((SEEDED,), whole=False)
        slowdown = trial.slowdown()
    for found in (greedy, seeded):
        assert judge(found).result is OK, found
        assert [move.verified for move in found.moves] == [True, False, False, True]
        assert judge(found).num_equal_blocks == 4
    to = [order.wanted.to for order in fake.orders[:4]]
    assert to in (["i-0", "i-1"] * 2, ["i-1", "i-0"] * 2), "each direction is verified and timed"
    assert slowdown is not None
    assert slowdown.num_streams == 4
    assert abs(slowdown.slowdown) < 0.01


def test_a_token_that_a_move_changes_is_found() -> None:
    fake = Fake(lambda index, num_moves: index + num_moves // 3)
    with fake.trial() as trial:
        (found,) = map(judge, trial.run((), whole=False))
    assert (found.result, found.tokens) == (FAIL, "differ")
    assert found.first_difference is not None
    assert found.first_difference > 2 * engine_trial.GAP_TOKENS


def test_a_move_that_is_refused_for_the_moment_is_tried_again() -> None:
    fake = Fake()
    fake.codes = {0: "in_prefill", 1: "moving", 3: "no_slot"}
    with fake.trial() as trial:
        (found,) = trial.run((), whole=False)
    assert [move.outcome for move in found.moves] == ["migrated", "refused", *["migrated"] * 2]
    assert judge(found).result is WARN
    assert judge(found).what == "1 of 4 moves failed: the destination's batch is full"


def test_an_engine_that_moves_nothing_is_tried_once() -> None:
    fake = Fake()
    fake.codes = dict.fromkeys(range(100), "kv_groups")
    with fake.trial() as trial:
        found = trial.run()
    assert len(found) == len(fake.orders) == 1
    words = "no request can move: the model has a kind of KV layers that cannot be copied"
    assert trial_of(found, None, {}).problem == words


def test_a_request_that_waits_in_a_queue_moves_before_it_runs() -> None:
    fake = Fake(limit=6)
    with fake.trial(num_moves=1) as trial:
        *_, queued = trial.run(())
    assert queued.kind == engine_trial.QUEUED
    assert (queued.moves[0].queued, queued.moves[0].num_tokens) == (True, 0)
    assert queued.num_migrated == 2
    assert judge(queued).result is OK, queued
    assert not fake.cordoned


def test_a_batch_is_filled_whose_instance_tells_late_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_trial, "PATIENCE_S", 5.0)
    fake = Fake(limit=6, lag_s=0.1)
    with fake.trial(num_moves=1) as trial:
        *_, queued = trial.run(())
    assert len(fake.waited) == 1, "no filler waits, which would get no token"
    assert queued.num_migrated == 2
    assert judge(queued).result is OK, queued


def test_a_batch_that_is_too_large_to_be_filled_is_not() -> None:
    fake = Fake()
    with fake.trial(num_moves=1) as trial:
        *_, queued = trial.run(())
    assert judge(queued).what.startswith("not tried: a batch takes 1024 requests")


@pytest.mark.parametrize("fails_late", [False, True])
def test_a_kind_that_the_engine_does_not_serve_is_no_fault(fails_late: bool) -> None:
    fake = Fake()
    fake.failing, fake.fails_late = {"logprobs"}, fails_late
    with fake.trial() as trial:
        greedy, refused = trial.run((Kind("x", {**GREEDY.body, "logprobs": 3}),), whole=False)
    assert judge(greedy).result is OK
    assert judge(refused).result is WARN
    assert judge(refused).what == "not served: no {'logprobs'}"


def test_a_string_to_stop_at() -> None:
    text = "one and two and three and four and five and six hundred and seven"
    assert late_string(text) == "undred a"
    assert late_string("la la la " * 20) == ""
    assert late_string("") == ""


# -- its cluster -----------------------------------------------------------------------------


def test_the_cluster_is_configured_as_the_users_except_for_what_the_trial_needs() -> None:
    settings = Settings(
        cluster=ClusterTable(name="prod", model="/m", instances=9, frontends=3, ray_address="h:1"),
        endpoint=EndpointTable(host="0.0.0.0", port=80, api_key_file="/keys"),
        migration=MigrationSettings(max_bytes_per_s=5.0),
        engine={"tensor_parallel_size": 2, "max_num_seqs": 256},
    )
    own = trial_cluster.trial_settings(settings)
    assert (own.cluster.instances, own.cluster.frontends) == (2, 1)
    assert (own.cluster.model, own.cluster.ray_address) == ("/m", "h:1")
    assert own.cluster.name != "prod"
    assert (own.endpoint.host, own.endpoint.api_key_file) == ("127.0.0.1", None)
    assert len({own.endpoint.port, own.control.port, 80, 8700}) == 4
    assert (own.migration.enabled, own.migration.max_bytes_per_s) == (False, 5.0)
    assert own.engine == {"tensor_parallel_size": 2} | NEEDED
    emulated = Settings(cluster=ClusterTable(engine="emulated"), emulated=EmulatedTable(speed=2.0))
    own = trial_cluster.trial_settings(emulated)
    assert (own.engine, own.emulated.speed, own.emulated.prefix_caching) == ({}, 2.0, False)
    assert trial_cluster.changes(emulated, own) == "prefix_caching false instead of true"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({}, "enable_prefix_caching false, max_num_seqs 16"),
        (
            {"enable_prefix_caching": True, "max_num_seqs": 256},
            "enable_prefix_caching false instead of true, max_num_seqs 16 instead of 256",
        ),
        ({"max_num_seqs": 12}, "enable_prefix_caching false"),
        ({"max_num_seqs": 2}, "enable_prefix_caching false, max_num_seqs 8 instead of 2"),
        ({"enable_prefix_caching": False, "max_num_seqs": 9}, ""),
    ],
)
def test_engine_arguments_that_the_trial_sets_are_told(engine: dict[str, Any], told: str) -> None:
    settings = Settings(engine=engine)
    own = trial_cluster.trial_settings(settings)
    assert trial_cluster.changes(settings, own) == told
    assert own.engine["enable_prefix_caching"] is False


def test_versions_are_those_of_the_environment_in_which_instances_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = trial_cluster.versions(Settings())
    assert here["vllm"] == " ".join(preflight.check_vllm_version())
    there = Environment(
        python="3.11",
        ray="2.60.0",
        llumctl=here["llumctl"],
        wire="x",
        vllm="0.99.0",
        distribution="vllm",
        torch="9.9",
    )
    monkeypatch.setattr(environment, "described", lambda *_: there)
    found = trial_cluster.versions(Settings(engine={"python": "/new/bin/python"}))
    assert found == {
        "llumctl": here["llumctl"],
        "vllm": "vllm 0.99.0",
        "torch": "9.9",
        "ray": "2.60.0",
        "python": "3.11, /new/bin/python",
        "frontends": f"vllm {here['vllm']}, torch {here['torch']}",
    }


@pytest.mark.parametrize(
    ("gpus", "engine", "is_shared"),
    [
        (0, {}, False),
        (1, {}, True),
        (2, {}, False),
        (2, {"tensor_parallel_size": 2}, True),
        (1, {"tensor_parallel_size": 2}, False),
        (1, {"tensor_parallel_size": "x"}, False),
        (1, {"gpu_memory_utilization": 0.3}, True),
    ],
)
def test_two_instances_share_the_gpus_that_are_enough_for_one(
    gpus: int, engine: dict[str, Any], is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "visible_gpus", lambda: ["GPU 0: H100"] * gpus)
    own = trial_cluster.trial_settings(Settings(engine=engine))
    assert own.engine == engine | NEEDED | (trial_cluster.SHARED | engine if is_shared else {})
    model = trial_cluster.trial_settings(Settings(cluster=ClusterTable(model="/m"), engine=engine))
    assert ("kv_cache_memory_bytes" in model.engine) is is_shared


def test_ray_gives_shared_gpus_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "visible_gpus", lambda: ["GPU 0: H100"])
    plans: list[ClusterPlan] = []

    def started(plan: ClusterPlan, *_: Any) -> None:
        plans.append(plan)
        raise LlumctlError("no start")

    monkeypatch.setattr(up, "start_head", started)
    settings = trial_cluster.trial_settings(Settings())
    for share_gpus in (False, True):
        with pytest.raises(LlumctlError, match="no start"):
            up.run(
                settings,
                detach=True,
                wait=True,
                timeout_s=None,
                progress=lambda _: None,
                share_gpus=share_gpus,
            )
    assert [plan.num_gpus_per_instance for plan in plans] == [1, 0]


@pytest.mark.parametrize("end", ["fine", "a finding", "a fault", "an interrupt", "no start"])
def test_the_cluster_is_taken_down_however_the_trial_ends(
    end: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[str] = []
    fine = TRIAL.model_copy(update={"result": OK})
    trial = {
        "fine": lambda *_: fine,
        "a finding": lambda *_: TRIAL,
        "a fault": raising(LlumctlError("x")),
    }.get(end, raising(KeyboardInterrupt()))

    def started(settings: Settings, **_: Any) -> None:
        logs = run_state.state_dir(settings.cluster.name) / "logs"
        if end == "no start":
            raise LlumctlError("no room")
        logs.mkdir()
        (logs / "i-0.log").touch()
        remember("http://127.0.0.1:1", name=settings.cluster.name)

    def ended(name: str, **_: Any) -> bool:
        stopped.append(name)
        return True

    monkeypatch.setattr(doctor, "run", lambda _: [FINE])
    monkeypatch.setattr(up, "run", started)
    monkeypatch.setattr(down, "run", ended)
    monkeypatch.setattr(trial_cluster, "_tried", trial)
    assert run(["doctor", "--engine"]) == {"fine": 0, "an interrupt": 130}.get(end, 1)
    (name,) = stopped
    assert name.startswith("doctor-")
    has_logs = (run_state.state_path(name) / "logs" / "i-0.log").exists()
    assert has_logs is (end not in ("fine", "no start"))
    assert run_state.state_path(name).exists() is has_logs
    told = f"the logs stay in {run_state.state_path(name) / 'logs'}" in capsys.readouterr().err
    assert told is (end in ("a finding", "an interrupt"))


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*_: Any) -> None:
        raise error

    return function
