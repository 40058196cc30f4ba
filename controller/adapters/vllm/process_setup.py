"""How a process uses vLLM: the environment in which it imports vLLM; the engine arguments as vLLM's
classes; the end of what vLLM's process groups leave behind; the names by which processes find each
other; and metrics that several processes share.

Variables that the user has set in the environment reach vLLM, except for those listed here. A
contract test knows each variable that vLLM's server reads. If a new version reads one more
variable, the test fails until somebody decides about that variable.

Touch points of vLLM: engine/arg_utils.py `EngineArgs`, `get_type_hints`;
distributed/parallel_state.py `get_tp_group`, `get_pp_group`, `get_dp_group`, `get_dcp_group`,
`get_pcp_group`, `get_world_group`, `world_size`, `destroy`, `cpu_group`;
distributed/device_communicators/shm_broadcast.py `ShmRingBuffer`;
distributed/device_communicators/shm_tensor_arena.py `ShmTensorArena`, `is_creator`,
`shared_memory`; v1/worker/worker_base.py `distributed_init_method`; envs.py
`VLLM_RPC_BASE_PATH`."""

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

log = logging.getLogger(__name__)

SET = {
    # Keeps the CPU platform from turning the in-process executor into a subprocess
    # (vllm/platforms/cpu.py, check_and_update_config).
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # A library of vLLM's server sets the level of the root logger to this. Its default is ERROR,
    # which would silence llumctl's own log in a frontend.
    "SAGEMAKER_CONTAINER_LOG_LEVEL": "INFO",
    # Memory for compiled grammars that no request uses any more; vLLM's default is 512. One grammar
    # takes at most 32 (grammars/trials.py), and 0.1 for a tool's schema and a vocabulary of
    # 128,000.
    "VLLM_XGRAMMAR_CACHE_MB": "64",
}

_PROMPTS = "it writes prompts and answers into logs"
_ROUTES = "it opens routes to clients"
_ONE_FRONTEND = "it keeps clients' data in one frontend, without end, and other frontends lack it"
_NO_RANKS = "instances are no ranks of one deployment"
REMOVED = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets members of the cluster send each other pickles",
    "VLLM_SERVER_DEV_MODE": _ROUTES,
    "VLLM_ENABLE_COHERE_API": _ROUTES,
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it loads adapters that clients name",
    "VLLM_API_KEY": "keys stand in endpoint.api_key_file",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": _PROMPTS,
    "VLLM_LOGGING_CONFIG_PATH": _PROMPTS,
    "VLLM_REQUEST_BODY_LOG_LEVEL": _PROMPTS,
    # With this store, the holder of any API key could read the answers to the other keys' requests.
    "VLLM_ENABLE_RESPONSES_API_STORE": _ONE_FRONTEND,
    "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": _ONE_FRONTEND,
    # A client could end or garble another client's request by giving its own the same X-Request-Id.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "requests of two clients might have the same id",
    "VLLM_CPU_KVCACHE_SPACE": "engine.kv_cache_memory_bytes says it, not only in whole GiB",
    "VLLM_DP_RANK": _NO_RANKS,
    "VLLM_DP_RANK_LOCAL": _NO_RANKS,
    "VLLM_DP_SIZE": _NO_RANKS,
    "VLLM_DP_MASTER_IP": _NO_RANKS,
    "VLLM_DP_MASTER_PORT": _NO_RANKS,
    # With this variable each rank's process of vLLM sends spans of its own, by default over gRPC.
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "endpoint.otlp_traces_endpoint says it",
    # Kubernetes sets it to a URL in the pods of a namespace that has a service named vllm.
    "VLLM_PORT": "several instances on one machine cannot have the same port",
}
"""Variables that are removed, with the reason."""

DEFAULTS = {
    # By default vLLM binds rank n of every engine to the cores of the n-th NUMA node. Two instances
    # would get the same cores, and on a CPU machine with fewer nodes than ranks vLLM refuses to
    # start.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # When a worker process dies, vLLM first waits this long for the others to exit, and only then a
    # step that is under way fails. Until then the requests of the instance stand still. On a CPU
    # workers never exit by themselves, so vLLM's default of 5 s would be waited in full.
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",
}

_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


# At these levels vLLM writes prompts and answers into its log.
TALKATIVE_LEVELS = ("DEBUG", "NOTSET")


def prepare() -> None:
    """Sets up the environment. Must be called before vLLM is imported."""
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in TALKATIVE_LEVELS:
        os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    for key, why in REMOVED.items():
        if os.environ.pop(key, None) is not None:
            log.warning("%s of the environment is ignored: %s", key, why)
    for key, default in DEFAULTS.items():
        os.environ.setdefault(key, default)
    os.environ.update(SET)


# -- engine arguments ------------------------------------------------------------------------------


def typed_arguments(engine_args: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with each table turned into the class that vLLM declares for it. Raises
    ValueError."""
    from vllm.engine.arg_utils import AsyncEngineArgs, get_type_hints

    hints = {field.name: get_type_hints(field.type) for field in fields(AsyncEngineArgs)}
    found = dict(engine_args)
    for name, value in engine_args.items():
        kinds = hints.get(name, ())
        kind = next((k for k in kinds if isinstance(k, type) and is_dataclass(k)), None)
        if kind is not None and isinstance(value, dict):
            found[name] = TypeAdapter(kind).validate_python(value)
    return found


# -- process groups of one -------------------------------------------------------------------------
# Ends the threads and ports that vLLM's process groups leave behind in an engine of one process.
#
# In such an engine each process group has one member. vLLM makes thirteen groups, each with a Gloo
# listener and a thread that wakes a hundred times a second (together a fifth of the CPU time of an
# idle instance), and communicates through none of them. No engine connects to the listeners, but
# every user of the machine can. Gloo never closes the descriptor of a connection that does not
# speak its protocol (118 descriptors became 2,220 within a minute), and ends the process when no
# descriptor is left.
#
# Two groups of the world stay, because vLLM asks them for their backend. Gloo watches their
# listeners for as long as the process lives, so the descriptors must stay open. They are pointed to
# a socket that never receives anything.


@contextmanager
def closed_afterwards(*, only_if: bool) -> Iterator[None]:
    """At the end of the `with` block, closes the listeners that any thread of this process has
    opened in it, but only if `only_if` is true."""
    before = listeners()
    yield
    if only_if:
        opened = listeners() - before
        for descriptor, _inode in opened:
            _close(descriptor)
        log.info("closed %d listeners of process groups of one", len(opened))


def destroy_groups_of_one() -> None:
    """Destroys the process groups of the engine in this process, except those of the world. Must be
    called after the model is loaded. In a group of one member, vLLM's operations return their
    input."""
    import torch
    from vllm.distributed import parallel_state

    for group in (
        parallel_state.get_tp_group(),
        parallel_state.get_pp_group(),
        parallel_state.get_dp_group(),
        parallel_state.get_dcp_group(),
        parallel_state.get_pcp_group(),
    ):
        if group.world_size == 1:
            group.destroy()
    world = parallel_state.get_world_group()
    if world.world_size == 1 and hasattr(world, "cpu_group"):
        torch.distributed.destroy_process_group(world.cpu_group)
        del world.cpu_group


def close_group_ports(_worker: Any) -> None:
    """The same for a worker of an engine with several ranks on a CPU. Runs in its process after the
    model is loaded. By then Gloo has connected all members of its groups with each other, and no
    group is made later, so nobody connects to its listeners any more."""
    destroy_groups_of_one()
    opened = listeners()
    for descriptor, _inode in opened:
        _close(descriptor)
    log.info("closed %d listeners of process groups", len(opened))


def die_with_engine(_worker: Any, engine_pid: int) -> None:
    """Makes this worker end when the engine's process or its engine's thread ends, even if the
    worker is stopped or hangs by then. Runs in the worker's process. A worker that another process
    started, as Ray does, is not changed."""
    if os.getppid() == engine_pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def listeners() -> set[tuple[int, int]]:
    """The descriptor and the inode of each listening TCP socket of this process."""
    return {found for entry in Path("/proc/self/fd").iterdir() if (found := _listener(entry))}


def _listener(entry: Path) -> tuple[int, int] | None:
    with suppress(OSError):  # the descriptor is closed by now, or is not a socket
        if not entry.readlink().name.startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(int(entry.name))) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                return int(entry.name), os.fstat(found.fileno()).st_ino
    return None


def _close(descriptor: int) -> None:
    """Replaces the socket in one step, so that no other thread can get its descriptor meanwhile."""
    with socket.socket() as silent:
        os.dup2(silent.fileno(), descriptor, inheritable=False)


# -- what the processes of an engine find each other by --------------------------------------------
# The processes of an engine with several ranks open each other's memory by names in /dev/shm, each
# other's sockets by names in a folder, and meet in a file. They do so once, at the start. vLLM
# removes the names if the engine ends in good order, but an instance's processes are often killed:
# two ranks then left segments of 680 MB in all (6 MB of them in use), two of 4 MB and four sockets
# behind, and any engine a file. So the names are removed as soon as the engine has started. The
# system frees the memory when the last process ends, however it ends.

_SHARED_MEMORY = Path("/dev/shm")
_OF_KERNELS = "vllm_dist_"
"""The beginning of the names that vLLM's kernels on a CPU give to their memory."""
_FILE = "file://"
_LONG_PATH = 50
"""The name of a Unix socket may have 107 bytes."""
_WITH_PATH = 8
"""The number of columns in /proc/net/unix for a socket with a path, which comes last."""


@contextmanager
def folder_of_sockets() -> Iterator[str]:
    """A private folder for sockets, which is deleted at the end of the `with` block."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) < _LONG_PATH else "/tmp"
    with tempfile.TemporaryDirectory(
        prefix="llumctl-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        yield folder


def forget_names(_worker: Any = None) -> None:
    """Removes the names of the shared memory and of the sockets that this process has made. Runs in
    each process of an engine with several ranks, when all of them have opened these."""
    from vllm import envs
    from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer
    from vllm.distributed.device_communicators.shm_tensor_arena import ShmTensorArena

    frozen = gc.get_freeze_count() > 0  # vLLM does it after the start; they are not listed then
    gc.unfreeze()
    for found in gc.get_objects():
        if type(found) in (ShmRingBuffer, ShmTensorArena) and found.is_creator:
            found.shared_memory.unlink()
            found.is_creator = False
    if frozen:
        gc.freeze()
    mapped = Path("/proc/self/maps").read_text()
    for memory in _SHARED_MEMORY.glob(f"{_OF_KERNELS}*"):
        if str(memory) in mapped:
            memory.unlink(missing_ok=True)  # each rank maps the memory of all
    for path in named_sockets():
        if path.parent == Path(envs.VLLM_RPC_BASE_PATH):
            path.unlink(missing_ok=True)


def named_sockets() -> set[Path]:
    """The paths of this process's own Unix sockets, whether or not they exist any more."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor is closed by now
            inodes.add(entry.readlink().name)
    lines = [line.split() for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]]
    return {
        Path(path)
        for *_, inode, path in (line for line in lines if len(line) == _WITH_PATH)
        if f"socket:[{inode}]" in inodes
    }


def forget_meeting_file(worker: Any) -> None:
    """Removes the file in which the process groups have met. Runs in each worker's process, but
    only on a CPU: NCCL reads the file again later."""
    method: str = worker.distributed_init_method
    if method.startswith(_FILE):
        Path(method.removeprefix(_FILE)).unlink(missing_ok=True)


# -- metrics of several processes ------------------------------------------------------------------
# Several frontends listen on one port. A scrape reaches any one of them, and on a kept connection
# always the same one, so each must answer for all. prometheus_client's multiprocess mode does this
# through files in a folder.


def share_metrics(folder: Path) -> None:
    """Makes this process share its metrics with every process that names the same folder.

    The folder must be new for each run of a cluster, because all figures found in it are included.
    The figures of a dead process stay, as they should. Metrics about the process itself
    (`process_*`) are not served in this mode.

    Raises RuntimeError if prometheus_client was imported before, because its import chooses the
    mode."""
    if "prometheus_client" in sys.modules:
        raise RuntimeError("prometheus_client was imported before metrics could be shared")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
