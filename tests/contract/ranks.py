"""What tests see of the workers of an engine. Its functions run in their processes, by
`collective_rpc`."""

from pathlib import Path
from typing import Any

from controller.adapters.vllm.engine import VllmEngine
from controller.adapters.vllm.process_setup import listeners, named_sockets


def remembered(engine: VllmEngine) -> list[list[str]]:
    """The requests that each rank knows, in the batch or out of it."""
    found: list[list[str]] = engine._core.model_executor.collective_rpc(_remembered)
    return found


def num_listeners(engine: VllmEngine) -> list[int]:
    found: list[int] = engine._core.model_executor.collective_rpc(_num_listeners)
    return found


def shared_names(engine: VllmEngine) -> set[str]:
    """The files by which the engine's processes have shared memory or found each other, as far as
    they still have a name. They would stay if the processes were killed."""
    calls = engine._core.model_executor.collective_rpc(_shared_names)
    return _shared_names(None).union(*calls)


def _shared_names(worker: Any) -> set[str]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = {line.split(maxsplit=5)[-1] for line in maps if "/dev/shm/" in line}
    found.update(map(str, named_sockets()))
    if worker is not None:
        found.add(worker.distributed_init_method.removeprefix("file://"))
    return {name for name in found if Path(name).exists()}


def _remembered(worker: Any) -> list[str]:
    runner = worker.model_runner
    if worker.use_v2_model_runner:
        return list(runner.req_states.req_id_to_index)
    batch = runner.input_batch
    in_batch = [*batch.req_id_to_index, *(f"generator {n}" for n in batch.generators)]
    return [*runner.requests, *in_batch]


def _num_listeners(_worker: Any) -> int:
    return len(listeners())
