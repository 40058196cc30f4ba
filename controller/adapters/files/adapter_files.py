"""The files of LoRA adapters: what they say, and an instance's copies of them.

A copy is in a folder that has the digest of the files as its name. So all instances of a machine
share it, and nobody changes it: an engine may read the files again at any time. Each process that
uses the copy holds a shared lock on a file beside it, and the last one removes the copy. The kernel
takes back the lock of a process that dies. What nobody locks any more, because its cluster was
killed, the next cluster removes.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from controller.core.fleet.adapters import Adapter, AdapterFacts

CONFIG_FILE = "adapter_config.json"
WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""vLLM takes the first of these (lora/lora_model.py `from_local_checkpoint`)."""
MAX_CONFIG_BYTES = 1 << 20
CHUNK_BYTES = 4 << 20


def facts_of(folder: Path) -> AdapterFacts:
    """Reads all of the adapter's files. Raises ValueError, with the reason in words."""
    with _files_of(folder) as files:
        rank = _rank(files[CONFIG_FILE])
        return AdapterFacts(_digest(files), rank)


@contextmanager
def _files_of(folder: Path) -> Iterator[dict[str, IO[bytes]]]:
    """The files that vLLM reads, opened. Raises ValueError, also if one cannot be read within the
    block."""
    opened: dict[str, IO[bytes]] = {}
    try:
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}")
        weights = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
        if weights is None:
            raise ValueError(f"{folder} has none of {', '.join(WEIGHT_FILES)}")
        if not (folder / CONFIG_FILE).is_file():
            raise ValueError(f"{folder} has no {CONFIG_FILE}")
        for name in (CONFIG_FILE, weights):
            opened[name] = (folder / name).open("rb")
        yield opened
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise  # it is about the copy
        raise ValueError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        for file in opened.values():
            file.close()


def _rank(file: IO[bytes]) -> int:
    """The largest rank that the configuration gives. Leaves the file at its beginning."""
    text = file.read(MAX_CONFIG_BYTES)
    file.seek(0)
    try:
        config = json.loads(text)
        ranks: list[int] = [config["r"], *(config.get("rank_pattern") or {}).values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{CONFIG_FILE} is not the configuration of a LoRA adapter") from None
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise ValueError(f"{CONFIG_FILE}: the ranks are {ranks!r:.80}")
    return max(ranks)


def _digest(files: dict[str, IO[bytes]], into: Path | None = None) -> str:
    """The SHA-256 of the files' names, sizes and bytes, which are also copied into a folder."""
    digest = hashlib.sha256()
    for name, file in files.items():
        size = os.fstat(file.fileno()).st_size
        digest.update(f"{name}\0{size}\0".encode())
        copy = None if into is None else (into / name).open("xb")
        try:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                if copy is not None:
                    copy.write(chunk)
        finally:
            if copy is not None:
                copy.close()
    return digest.hexdigest()


class AdapterCopies:
    """The copies of one process, in a folder that it shares with others of its machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[int, IO[bytes]] = {}
        """The lock file of each adapter that this process uses, by number."""

    def fetch(self, adapter: Adapter) -> str:
        """See `AdapterFiles.fetch`."""
        copy = self._folder / adapter.digest
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _remove_abandoned(self._folder)
            with self._opened(adapter, "copying") as copying:
                lock = self._opened(adapter, "lock")
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH)  # waits while another process removes the copy
                    fcntl.flock(copying, fcntl.LOCK_EX)  # waits while another process makes it
                    if not copy.is_dir():
                        self._copy(adapter, copy)
                except BaseException:
                    lock.close()
                    raise
        except OSError as error:
            raise ValueError(f"{error.filename or self._folder}: {error.strerror}") from error
        self._locks[adapter.number] = lock
        return str(copy)

    def drop(self, adapter: Adapter) -> None:
        """See `AdapterFiles.drop`."""
        with self._locks.pop(adapter.number) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process uses the copy
            _remove(self._folder / adapter.digest)

    def _opened(self, adapter: Adapter, suffix: str) -> IO[bytes]:
        return (self._folder / f"{adapter.digest}.{suffix}").open("ab")

    def _copy(self, adapter: Adapter, copy: Path) -> None:
        """Makes the copy; no other process makes it now. Raises ValueError, and OSError without a
        name if the disk is full."""
        made = self._folder / f"{adapter.digest}.made"
        shutil.rmtree(made, ignore_errors=True)  # a process was killed while it made it
        made.mkdir()
        try:
            with _files_of(Path(adapter.path)) as files:
                found = _digest(files, made)
            if found != adapter.digest:
                raise ValueError(
                    f"{adapter.path} has other files than those that were loaded under this name"
                    f" (SHA-256 {found[:12]}, not {adapter.digest[:12]})"
                )
            made.rename(copy)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise


def _remove(copy: Path) -> None:
    """Removes a copy that nobody uses, as its lock shows. If this process is killed meanwhile, no
    other process takes the rest for a copy."""
    gone = copy.with_name(f"{copy.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(OSError):  # somebody has removed it by hand
        copy.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Removes the copies of earlier clusters that nobody uses any more: a cluster's end removes its
    folder on the machine of `up` only."""
    run = folder.parent
    prefix = run.name.rpartition("-")[0]
    for lock_file in run.parent.glob(f"{prefix}-*/{folder.name}/*.lock"):
        with contextlib.suppress(OSError), lock_file.open("ab") as lock:  # of another user
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(lock_file.with_suffix(""))
