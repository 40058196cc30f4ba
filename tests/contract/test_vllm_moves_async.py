"""Moves under vLLM's asynchronous scheduling (its default on a GPU), with its scheduler alone: the
steps are scheduled ahead here, and the test supplies the tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.adapters.vllm.kv_blocks import CudaBlocks
from controller.adapters.vllm.lora import EngineAdapters
from controller.adapters.vllm.moves import DestinationMoves, SourceMoves, decode_state
from controller.adapters.vllm.scheduler_side import BatchSlots, EngineParts
from controller.adapters.vllm.workers import V2Workers, Workers
from controller.ports.engine import ReservedBlocks
from tests.contract.vllm_schedules import lone_scheduler

BLOCK_SIZE = 16
NUM_BLOCKS = 21


class AsyncEngine:
    """Two steps under way, as in `EngineCore.step_with_batch_queue`. A step writes its number into
    the slots of the tokens that it computes."""

    def __init__(self, model_path: Path, gpu: "Gpu", kind: type[Workers]) -> None:
        import torch
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        self.gpu = gpu
        self.cache = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.int64)
        self.blocks = CudaBlocks([self.cache], NUM_BLOCKS, torch.device("cpu"))
        self.scheduler = lone_scheduler(
            AsyncScheduler,
            model_path,
            NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_model_len=10 * BLOCK_SIZE,
            enable_prefix_caching=False,
        )
        kv = self.scheduler.kv_cache_manager
        self.parts = EngineParts(
            core=None,
            scheduler=self.scheduler,
            kv=kv,
            pool=kv.block_pool,
            block_size=BLOCK_SIZE,
            refusal=None,
            managers=tuple(kv.coordinator.single_type_managers),
            full=kv.coordinator.single_type_managers[0],
            tails=(),
            has_states=False,
        )
        self.slots = self.scheduler.max_num_active_reqs
        places = BatchSlots(self.scheduler)
        core = SimpleNamespace(
            scheduler=self.scheduler,
            model_executor=SimpleNamespace(collective_rpc=self._asked),
            vllm_config=SimpleNamespace(device_config=SimpleNamespace(device_type="cuda")),
        )
        workers = kind(core, self.blocks, None)
        adapters = EngineAdapters(core)
        self.moves = SourceMoves(self.parts, places, workers, adapters)
        self.arrivals = DestinationMoves(self.parts, places, workers, adapters)
        self.under_way: list[Any] = []
        self.tokens: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str]] = []
        """What the worker was asked to do, and for which request."""

    def _asked(self, function: Callable[..., Any], args: tuple[Any]) -> list[str]:
        (about,) = args
        self.asked.append((function.__name__, getattr(about, "request_id", about)))
        return [""]

    def add(
        self, request_id: str, num_prompt_tokens: int, max_tokens: int, stop: int | None = None
    ) -> Any:
        request = a_request(request_id, num_prompt_tokens, max_tokens, stop)
        self.scheduler.add_request(request)
        self.tokens[request_id] = []
        return request

    def launch(self) -> list[str]:
        scheduled = self.scheduler.schedule()
        self.under_way.append(scheduled)
        slots = [
            (self._block_ids(request_id)[position // BLOCK_SIZE], position % BLOCK_SIZE)
            for request_id, number in scheduled.num_scheduled_tokens.items()
            for position in self._last_computed(request_id, number)
        ]
        self.gpu.launch(lambda: self._write(slots))
        return list(scheduled.num_scheduled_tokens)

    def _block_ids(self, request_id: str) -> list[int]:
        return [block.block_id for block in self.parts.blocks(request_id)]

    def _last_computed(self, request_id: str, number: int) -> range:
        end = self.scheduler.requests[request_id].num_computed_tokens
        return range(end - number, end)

    def _write(self, slots: list[tuple[int, int]]) -> None:
        for block_id, offset in slots:
            self.cache[block_id, offset] = self.gpu.num_done

    def land(self) -> list[str]:
        """The oldest step under way ends. Returns the requests that got tokens."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduled = self.under_way.pop(0)
        self.gpu.run(self.gpu.num_launched - len(self.under_way))
        ids = list(scheduled.num_scheduled_tokens)
        bodies = self.scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
                sampled_token_ids=[[1000 + len(self.tokens[i])] for i in ids],
            ),
        )
        self.moves.forget_finished()
        outs = [out for body in bodies.values() for out in body.outputs]
        for out in outs:
            self.tokens[out.request_id] += out.new_token_ids
        return [out.request_id for out in outs]


class Gpu:
    """Runs launched work only when a caller waits for it, and steps in their order."""

    def __init__(self) -> None:
        self._launched: list[Callable[[], None]] = []
        self.num_done = 0

    @property
    def num_launched(self) -> int:
        return len(self._launched)

    def launch(self, step: Callable[[], None]) -> None:
        self._launched.append(step)

    def run(self, num_steps: int) -> None:
        """Runs until this many steps are done in all."""
        while self.num_done < num_steps:
            self.num_done += 1
            self._launched[self.num_done - 1]()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """torch.cuda, as far as `CudaBlocks` uses it: work on its stream waits for steps only when told
    to."""
    import torch

    made = Gpu()

    class Event:
        num_steps = 0

        def __init__(self, blocking: bool = False) -> None: ...

        def record(self) -> None:
            self.num_steps = made.num_launched

        def synchronize(self) -> None: ...

    class Stream:
        def __init__(self, _device: Any) -> None: ...

        def wait_event(self, event: Event) -> None:
            made.run(event.num_steps)

        def record_event(self, event: Event) -> Event:
            return event

    @contextmanager
    def on_stream(_stream: Stream) -> Iterator[None]:
        yield

    for name, fake in [("Stream", Stream), ("Event", Event), ("stream", on_stream)]:
        monkeypatch.setattr(torch.cuda, name, fake)
    return made


def a_request(
    request_id: str, num_prompt_tokens: int, max_tokens: int, stop: int | None = None
) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    stops = [] if stop is None else [stop]
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stops)
    return Request(request_id, list(range(1, num_prompt_tokens + 1)), params, None)


@pytest.fixture(params=[Workers, V2Workers], ids=["V1", "V2"])
def engine(model_path: Path, gpu: Gpu, request: pytest.FixtureRequest) -> AsyncEngine:
    return AsyncEngine(model_path, gpu, request.param)


def test_a_step_under_way_comes_in_before_the_cut(engine: AsyncEngine) -> None:
    request = engine.add("r", 30, 20)
    engine.launch()
    engine.launch()
    engine.land()
    engine.launch()
    assert request.num_in_flight_tokens == 2
    assert engine.moves.suspend("r") is None
    assert engine.launch() == [], "it is in no step that begins now"
    assert engine.moves.suspend("r") is None
    assert engine.land() == ["r"]
    assert engine.moves.suspend("r") is None
    assert engine.land() == ["r"]
    suspended = engine.moves.suspend("r")
    assert suspended is not None
    assert (
        decode_state(suspended.state).output_token_ids == engine.tokens["r"] == [1000, 1001, 1002]
    )
    assert request.num_computed_tokens == suspended.num_tokens - 1 == 32
    assert len(suspended.block_ids) == 2
    engine.land()
    engine.moves.resume("r")
    assert engine.launch() == ["r"]
    engine.land()
    assert engine.tokens["r"] == [1000, 1001, 1002, 1003]


def test_blocks_of_steps_under_way_are_not_pinned(engine: AsyncEngine) -> None:
    engine.add("r", 31, 20)
    engine.launch()
    engine.launch()
    engine.land()
    pinned = engine.moves.pin("r", 0)
    assert len(pinned.block_ids) == 1, "the second block is being filled"
    engine.land()
    engine.launch()
    pinned = engine.moves.pin("r", 1)
    assert len(pinned.block_ids) == 1
    engine.land()
    engine.moves.unpin("r")


@pytest.mark.parametrize("end", ["finished", "aborted", "taken back"])
def test_a_leaving_request_may_end_otherwise(engine: AsyncEngine, end: str) -> None:
    from vllm.v1.request import RequestStatus

    engine.add("r", 30, 2)
    engine.launch()
    engine.launch()
    engine.land()
    assert engine.moves.suspend("r") is None
    assert engine.scheduler.max_num_active_reqs == engine.slots - 1
    if end == "finished":
        engine.land()
        assert engine.tokens["r"] == [1000, 1001]
        assert engine.scheduler.max_num_active_reqs == engine.slots
        with pytest.raises(KeyError):
            engine.moves.suspend("r")
    elif end == "aborted":
        engine.moves.forget(["r"])
        engine.scheduler.finish_requests("r", RequestStatus.FINISHED_ABORTED)
        engine.land()
    else:
        engine.moves.resume("r")
        engine.land()
    assert "r" not in engine.scheduler.requests
    assert engine.scheduler.max_num_active_reqs == engine.slots
    assert engine.parts.pool.get_num_free_blocks() == engine.parts.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("num_reserved_before", [0, 8])
def test_what_arrives_is_not_overwritten_by_a_step_under_way(
    engine: AsyncEngine, num_reserved_before: int
) -> None:
    """A request ends with the output of one step while the next step computes a token for it: its
    blocks are free for a reservation, and that token's slot is still to be written."""
    arrivals, outputs = engine.arrivals, [900]
    engine.add("old", 17, 20, stop=1001)
    engine.launch()
    engine.launch()
    (_, last) = engine._block_ids("old")
    assert isinstance(arrivals.reserve(a_request("a", 150, 9), outputs, 10), ReservedBlocks)
    new = a_request("new", 150, 9)
    if num_reserved_before:
        assert isinstance(arrivals.reserve(new, outputs, num_reserved_before), ReservedBlocks)
    engine.land()
    engine.launch()
    engine.land()
    assert "old" not in engine.scheduler.requests
    assert engine.gpu.num_done == 2, "the third step has a token of it to write"

    reserved = (
        arrivals.extend("new", 10) if num_reserved_before else arrivals.reserve(new, outputs, 10)
    )
    assert isinstance(reserved, ReservedBlocks)
    assert last in reserved.block_ids
    buffer = engine.blocks.buffer(10)
    buffer.pinned.fill_(-7)
    engine.blocks.scatter(reserved.block_ids, buffer)
    engine.land()
    assert engine.gpu.num_done == 3
    assert (engine.cache[list(reserved.block_ids)] == -7).all(), "what came is there"
