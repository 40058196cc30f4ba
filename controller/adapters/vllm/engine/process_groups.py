"""Ends what vLLM's process groups leave behind in an engine of one process: threads and ports.

Such an engine has process groups of one. vLLM makes thirteen, each with a Gloo listener and a
thread that wakes a hundred times a second (together a fifth of what an idle instance takes), and
communicates through none of them. No engine connects to the listeners, but every user of the
machine can: Gloo keeps the descriptor of each connection that does not speak its protocol for ever
(118 became 2,220 within a minute), and ends the process when no descriptor is left.

Two groups of the world stay, as vLLM asks them for their backend. Gloo watches their listeners for
as long as the process lives, so the descriptors must stay open; they are pointed to a socket that
never receives anything.

Touch points of vLLM: distributed/parallel_state.py `get_tp_group`, `get_pp_group`, `get_dp_group`,
`get_dcp_group`, `get_pcp_group`, `get_world_group`, and of what they return `world_size`,
`destroy` and `cpu_group`.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)


@contextmanager
def closed_afterwards(*, only_if: bool) -> Iterator[None]:
    """Closes the listeners that any thread of this process opens in the `with` block."""
    before = listeners()
    yield
    if only_if:
        opened = listeners() - before
        for descriptor, _inode in opened:
            _close(descriptor)
        log.info("closed %d listeners of process groups of one", len(opened))


def destroy_groups_of_one() -> None:
    """Destroys the process groups of the engine in this process, all but those of the world. Call
    it once the model is loaded. vLLM's operations return their input where a group has one
    member."""
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


def listeners() -> set[tuple[int, int]]:
    """Descriptor and inode of each listening TCP socket of this process."""
    return {found for entry in Path("/proc/self/fd").iterdir() if (found := _listener(entry))}


def _listener(entry: Path) -> tuple[int, int] | None:
    with suppress(OSError):  # the descriptor is closed by now, or is no socket
        if not entry.readlink().name.startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(int(entry.name))) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                return int(entry.name), os.fstat(found.fileno()).st_ino
    return None


def _close(descriptor: int) -> None:
    """Replaces the socket in one step, so that no other thread can get its number meanwhile."""
    with socket.socket() as silent:
        os.dup2(silent.fileno(), descriptor, inheritable=False)
