"""Copies between several ranks' caches and one buffer: which columns of a row are whose, in one
process; and the copies themselves, between processes that stand for workers."""

import mmap
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from controller.adapters.vllm import rank_copies
from controller.adapters.vllm.kv_blocks import (
    BlockRows,
    HostBlocks,
    LayerShard,
    caches_of,
    columns_of,
)
from controller.adapters.vllm.rank_copies import CopyServer, RankBlocks
from controller.adapters.vllm.worker_side import HeadsOfRank

B, N, C = 6, 4, 10


@pytest.mark.parametrize(
    ("tensors", "lanes"),
    [
        # Layers one after the other: (layers, layer stride, block stride, offset) of each group.
        ([(2, 48, 16, 0), (1, 48, 16, 0)], [(0, 16), (48, 16)]),
        # In each block the pages of all layers; those of the second group are smaller.
        ([(2, 16, 32, 0), (3, 8, 32, 0), (1, 8, 32, 24)], [(0, 32)]),
    ],
)
def test_several_groups_are_copied_as_whole_pages(
    tensors: list[tuple[int, int, int, int]], lanes: list[tuple[int, int]]
) -> None:
    num_blocks = 3
    memory = torch.arange(num_blocks * 32, dtype=torch.int8)
    config = SimpleNamespace(
        num_blocks=num_blocks,
        kv_cache_groups=["one", "other"],
        kv_cache_tensors=[
            SimpleNamespace(
                layers=["layer"] * number, layer_stride=layer, block_stride=block, offset=at
            )
            for number, layer, block, at in tensors
        ],
    )
    runner: Any = SimpleNamespace(kv_cache_config=config, kv_caches=[memory[:8]])
    found = caches_of(runner)
    expected = [
        memory.view(torch.uint8)[start : start + num_blocks * width].view(num_blocks, width)
        for start, width in lanes
    ]
    assert [each.tolist() for each in found] == [each.tolist() for each in expected]
    assert found[0].data_ptr() == memory.data_ptr(), "the caches themselves"


# -- a model's caches, whole and shared among ranks ----------------------------------------------


class Model:
    """The KV caches of a whole model: layers with KV heads, and layers that have none."""

    def __init__(self, layers: Sequence[int | None], dtype: torch.dtype, *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.dtype = dtype
        self.layers = layers
        self.whole = [self.random(heads or 1) for heads in layers]

    def random(self, heads: int) -> torch.Tensor:
        raw = torch.randint(0, 256, (B, heads, N, C * self.dtype.itemsize), dtype=torch.uint8)
        return raw.view(self.dtype)

    def rank(self, tp_rank: int, tp: int, among: range) -> tuple[list[Any], list[LayerShard]]:
        """The caches of one rank, which has the layers `among`, and what they hold."""
        caches, shards = [], []
        for layer in among:
            num_total, whole = self.layers[layer], self.whole[layer]
            part_bytes = N * C * self.dtype.itemsize
            if num_total is None:
                caches.append(whole.clone())
                shards.append(LayerShard(layer, 1, 0, 1, part_bytes))
                continue
            heads = HeadsOfRank(tp_rank, tp, num_total)
            caches.append(whole[:, heads.first : heads.first + heads.num_held].clone())
            shards.append(LayerShard(layer, num_total, heads.first, heads.num_held, part_bytes))
        return caches, shards

    def ranks(self, tp: int, pp: int) -> list[tuple[list[Any], list[LayerShard]]]:
        ends = [len(self.layers) * stage // pp for stage in range(pp + 1)]
        stages = [range(*ends[stage : stage + 2]) for stage in range(pp)]
        return [self.rank(tp_rank, tp, among) for among in stages for tp_rank in range(tp)]


def as_bytes(tensors: Sequence[torch.Tensor]) -> list[bytes]:
    return [bytes(t.contiguous().view(torch.uint8).numpy()) for t in tensors]


@pytest.mark.parametrize("seed", range(40))
def test_a_row_does_not_depend_on_the_number_of_ranks(seed: int) -> None:
    """Every rank gathers into the same rows, which are those of one rank that holds all; and what
    is scattered from them is what the rank holds."""
    dice = random.Random(seed)
    heads = dice.choice([1, 2, 4, 8, 12])
    layers = [dice.choice([heads, heads, None]) for _ in range(dice.randint(2, 5))]
    dtype = dice.choice([torch.float32, torch.bfloat16, torch.float8_e4m3fn])
    model = Model(layers, dtype, seed=seed)
    tp = dice.choice([n for n in (1, 2, 3, 4, 8, 16) if heads % n == 0 or n % heads == 0])
    pp = dice.choice([1, 2])
    ids = torch.tensor(dice.sample(range(B), 4))
    alone = HostBlocks(model.whole, B)
    expected = bytes(alone.gather(ids.tolist(), alone.buffer(4)))

    ranks = model.ranks(tp, pp)
    columns = columns_of([shards for _, shards in ranks])
    assert {c.row_bytes for c in columns} == {alone.block_bytes}
    rows = torch.zeros(4, alone.block_bytes, dtype=torch.uint8)
    num_writers = torch.zeros(alone.block_bytes, dtype=torch.int64)
    copiers = [BlockRows(caches, B, c) for (caches, _), c in zip(ranks, columns, strict=True)]
    for copier, (_, shards), c in zip(copiers, ranks, columns, strict=True):
        copier.gather(ids, rows.view(copier.dtype))
        for shard, start, gathered in zip(shards, c.starts, c.gathered, strict=True):
            num_writers[start : start + shard.num_held * shard.part_bytes] += gathered
    assert bytes(rows.numpy()) == expected
    assert set(num_writers.tolist()) == {1}, "each byte is gathered by one rank"

    places = torch.tensor(dice.sample(range(B), 4))
    for copier, (caches, _) in zip(copiers, ranks, strict=True):
        before = [cache.clone() for cache in caches]
        copier.scatter(places, rows.view(copier.dtype))
        for cache, old in zip(caches, before, strict=True):
            old.view(torch.uint8)[places] = old.view(torch.uint8)[ids]
            assert as_bytes([cache]) == as_bytes([old])


@pytest.mark.parametrize(
    "ranks",
    [
        [[LayerShard(0, 4, 0, 2, 8)]],
        [[LayerShard(0, 4, 0, 2, 8)], [LayerShard(0, 4, 3, 1, 8)]],
        [[LayerShard(0, 4, 0, 3, 8)], [LayerShard(0, 4, 2, 2, 8)]],
        [[LayerShard(0, 4, 0, 2, 8)], [LayerShard(0, 4, 2, 2, 16)]],
        [[LayerShard(0, 1, 0, 1, 8), LayerShard(0, 1, 0, 1, 8)]],
    ],
    ids=["too few", "a gap", "an overlap", "two sizes", "two caches of a layer"],
)
def test_ranks_that_do_not_hold_whole_layers_are_refused(ranks: list[list[LayerShard]]) -> None:
    with pytest.raises(ValueError, match="layer"):
        columns_of(ranks)


def test_heads_of_a_rank() -> None:
    def heads(num_total: int, num_ranks: int) -> list[tuple[int, int]]:
        of = [HeadsOfRank(rank, num_ranks, num_total) for rank in range(num_ranks)]
        return [(each.first, each.num_held) for each in of]

    assert heads(8, 1) == [(0, 8)]
    assert heads(8, 4) == [(0, 2), (2, 2), (4, 2), (6, 2)]
    assert heads(2, 4) == [(0, 1), (0, 1), (1, 1), (1, 1)]


# -- processes that stand for workers ------------------------------------------------------------


class Rank:
    """A forked process with a rank's caches, which this process can read too."""

    def __init__(self, index: int, caches: list[torch.Tensor], folder: Path) -> None:
        self.caches = [self._shared(cache) for cache in caches]
        self.runner = SimpleNamespace(
            kv_caches=self.caches,
            kv_cache_config=SimpleNamespace(kv_cache_groups=["one"]),
            device=torch.device("cpu"),
            execute_model=self._execute,
        )
        self.address = str(folder / str(index))
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=self._main, args=(theirs,), daemon=True)
        self.process.start()
        assert self._pipe.recv() == "listening"

    def step(self) -> None:
        """A step, which adds one to all that the caches hold."""
        self._pipe.send("step")
        assert self._pipe.recv() == "done"

    def signal(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def end(self) -> None:
        self.process.kill()
        self.process.join()

    def num_open(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    @staticmethod
    def _shared(cache: torch.Tensor) -> torch.Tensor:
        shared = torch.frombuffer(mmap.mmap(-1, cache.nbytes), dtype=cache.dtype)
        return shared.view(cache.shape).copy_(cache)

    def _execute(self) -> None:
        for cache in self.caches:
            cache.add_(1)

    def _main(self, pipe: Any) -> None:
        def drawn(seed: int, num_tokens: int) -> bytes:
            return f"{seed} after {num_tokens}".encode()

        CopyServer(self.runner, B, self.address, drawn)
        pipe.send("listening")
        while pipe.recv() == "step":
            self.runner.execute_model()
            pipe.send("done")


class Ranks:
    def __init__(self, model: Model, folder: Path, tp: int) -> None:
        folder.mkdir()
        self.num_dispatched = 0
        self.each = []
        for index, (caches, _) in enumerate(model.ranks(tp, 1)):
            self.each.append(Rank(index, caches, folder))
        self.blocks = RankBlocks(
            [rank_copies._connected(index, rank.address) for index, rank in enumerate(self.each)],
            [shards for _, shards in model.ranks(tp, 1)],
            lambda: self.num_dispatched,
        )

    def step(self) -> None:
        for rank in self.each:
            rank.step()


@pytest.fixture
def model() -> Model:
    return Model([4, None, 4], torch.int32)


Start = Callable[..., Ranks]


@pytest.fixture
def start(model: Model, tmp_path: Path) -> Iterator[Start]:
    started: list[Ranks] = []

    def start(tp: int, of: Model = model) -> Ranks:
        started.append(Ranks(of, tmp_path / str(len(started)), tp))
        return started[-1]

    yield start
    for ranks in started:
        ranks.blocks.close()
        for rank in ranks.each:
            rank.end()


@pytest.mark.process
def test_blocks_go_from_one_rank_to_two_and_back(model: Model, start: Start) -> None:
    alone = HostBlocks(model.whole, B)
    two = start(2, Model([4, None, 4], torch.int32, seed=1))
    back = HostBlocks([torch.zeros_like(cache) for cache in model.whole], B)
    assert two.blocks.block_bytes == alone.block_bytes
    theirs = two.blocks.buffer(4)
    for part in ([3, 1, 5], [0]):
        sent = alone.gather(part, alone.buffer(3))
        two.blocks.writable(theirs, len(part))[:] = sent
        two.blocks.scatter(part, theirs)
        returned = two.blocks.gather(part, theirs)
        assert (returned.nbytes, returned.format, returned.contiguous) == (sent.nbytes, "B", True)
        buffer = back.buffer(3)
        back.writable(buffer, len(part))[:] = returned
        back.scatter(part, buffer)
    for rank, (caches, _) in zip(two.each, model.ranks(2, 1), strict=True):
        for here, there in zip(rank.caches, caches, strict=True):
            assert torch.equal(here[[3, 1, 5, 0]], there[[3, 1, 5, 0]])
            assert not torch.equal(here[[2, 4]], there[[2, 4]]), "these were not copied"
    for here, there in zip(back._rows._gathered, alone._rows._gathered, strict=True):
        assert torch.equal(here[0][[3, 1, 5, 0]], there[0][[3, 1, 5, 0]])


@pytest.mark.process
def test_a_copy_waits_until_its_step_is_launched(model: Model, start: Start) -> None:
    ranks = start(2)
    buffer = ranks.blocks.buffer(1)
    before = bytes(ranks.blocks.gather([2], buffer))
    ranks.num_dispatched = 2
    ranks.blocks.order_after_steps()
    ranks.num_dispatched = 3  # a step that comes after the blocks were given to the copier
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(ranks.blocks.gather, [2], buffer)
        ranks.step()
        ranks.each[1].step()
        assert buffer.orders[1].poll(10), "one rank has copied"
        assert not copying.done()
        ranks.each[0].step()
        after = bytes(copying.result())
    assert after != before
    expected = [cache.add(2) for cache in model.whole]
    alone = HostBlocks(expected, B)
    assert after == bytes(alone.gather([2], alone.buffer(1)))


@pytest.mark.process
def test_a_stopped_rank_is_awaited(start: Start) -> None:
    ranks = start(2)
    buffer = ranks.blocks.buffer(2)
    expected = bytes(ranks.blocks.gather([4, 1], buffer))
    ranks.each[0].signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(ranks.blocks.gather, [4, 1], buffer)
        assert buffer.orders[1].poll(10), "the other rank has copied"
        assert not copying.done()
        ranks.each[0].signal(signal.SIGCONT)
        assert bytes(copying.result()) == expected


@pytest.mark.process
def test_a_rank_that_dies_in_the_middle_of_a_copy(start: Start) -> None:
    """The copy fails when the other rank has answered, and not before. Later copies and buffers
    fail too."""
    ranks = start(2)
    buffer = ranks.blocks.buffer(1)
    ranks.num_dispatched = 1
    ranks.blocks.order_after_steps()
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(ranks.blocks.scatter, [0], buffer)
        ranks.each[1].end()
        assert buffer.orders[1].poll(10)
        assert not copying.done(), "rank 0 may still write"
        ranks.each[0].step()
        with pytest.raises(RuntimeError, match="the process of rank 1 is gone"):
            copying.result()
    with pytest.raises(RuntimeError, match="the process of rank 1 is gone"):
        ranks.blocks.gather([0], buffer)
    with pytest.raises(RuntimeError, match="the process of rank 1 is gone"):
        ranks.blocks.buffer(1)


@pytest.mark.process
def test_a_rank_says_why_it_cannot_copy_and_goes_on(start: Start) -> None:
    ranks = start(2)
    buffer = ranks.blocks.buffer(2)
    with pytest.raises(RuntimeError, match=r"rank 0: ValueError\('a block that does not exist'\)"):
        ranks.blocks.gather([B], buffer)
    for touch in (ranks.blocks.gather, ranks.blocks.scatter):
        with pytest.raises(ValueError, match="3 blocks in a buffer for 2"):
            touch([0, 1, 2], buffer)
    assert len(ranks.blocks.gather([0], buffer)) == ranks.blocks.block_bytes
    assert ranks.blocks.drawn_generator(7, 30) == b"7 after 30"


@pytest.mark.process
def test_a_rank_without_memory_for_a_buffer_says_so_and_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, made = rank_copies._HostShard, []

    def scarce(*args: Any) -> Any:
        made.append(args)
        if len(made) == 1:
            raise RuntimeError("out of memory")
        return shard(*args)

    monkeypatch.setattr(rank_copies, "_HostShard", scarce)
    ranks = start(2)  # each has the function from here on
    buffer = ranks.blocks.buffer(1)
    with pytest.raises(RuntimeError, match=r"rank 0: RuntimeError\('out of memory'\)"):
        ranks.blocks.gather([0], buffer)
    assert len(ranks.blocks.gather([0], buffer)) == ranks.blocks.block_bytes


@pytest.mark.process
def test_ranks_free_a_buffer_that_is_gone(start: Start) -> None:
    ranks = start(2)
    before = [rank.num_open() for rank in ranks.each]
    buffer = ranks.blocks.buffer(1)
    ranks.blocks.gather([0], buffer)
    assert all(rank.num_open() > num for rank, num in zip(ranks.each, before, strict=True))
    del buffer
    wait_until(lambda: [rank.num_open() for rank in ranks.each] == before)


def test_a_rank_out_of_reach() -> None:
    with pytest.raises(rank_copies.RanksApartError, match="rank 3 is not in reach"):
        rank_copies._connected(3, "/no/such/folder/3")


def test_a_rank_that_cannot_serve_says_why() -> None:
    """vLLM must not see an error: it would leave the answers of other ranks in its queues."""
    worker = SimpleNamespace(rank=1, vllm_config=None, model_runner=None)
    said = rank_copies.serve_copies(worker, "/no/such/folder", B)
    executor = SimpleNamespace(collective_rpc=lambda *_, **__: [said], execute_model=lambda: None)
    with pytest.raises(rank_copies.RanksApartError, match="rank 0: AttributeError"):
        rank_copies.connect_ranks(executor, B)


def test_a_rank_on_a_gpu_copies_its_own_columns(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.cuda, as far as it is used, is replaced by a recorder; copies are made at once."""
    cuda = MagicMock()
    for name in ("Stream", "Event", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    ranks = model.ranks(2, 1)
    columns = columns_of([shards for _, shards in ranks])
    alone = HostBlocks(model.whole, B)
    expected = bytes(alone.gather([5, 2], alone.buffer(2)))
    rows = torch.zeros(2, alone.block_bytes, dtype=torch.uint8)
    launched = MagicMock()
    for (caches, _), own in zip(ranks, columns, strict=True):
        shard = rank_copies._CudaShard(caches, B, own, torch.device("cpu"), 3)
        shard.gather(torch.tensor([5, 2]), rows, launched)
    assert bytes(rows.numpy()) == expected
    for (caches, _), own in zip(ranks, columns, strict=True):
        shard = rank_copies._CudaShard(caches, B, own, torch.device("cpu"), 3)
        shard.scatter(torch.tensor([0, 1]), rows, launched)
        assert all(torch.equal(cache[[0, 1]], cache[[5, 2]]) for cache in caches)
    assert cuda.Stream().wait_event.call_args_list == [((launched,),)] * 4


def test_a_copy_waits_for_the_event_of_the_step_that_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = iter(range(200))
    stream = SimpleNamespace(record_event=lambda: next(recorded))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    runner = SimpleNamespace(device=torch.device("cuda", 0), execute_model=lambda: None)
    steps = rank_copies.LaunchedSteps(runner)
    assert steps.wait_for(0) == 0, "the steps from before"
    for _ in range(100):
        runner.execute_model()
    assert [steps.wait_for(step) for step in (100, 99, 60)] == [100, 99, 60]
    assert steps.wait_for(2) == 37, "an older step: the oldest event that is left"


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
