"""The files and the batches of the endpoint's batch API, in a folder of the cluster's state folder.

    batches/files/ID          the content of a file: the lines of a batch, or its answers
    batches/files/ID.json     what is known of the file (`FileRecord`)
    batches/runs/ID.json      what is known of the batch (`BatchRecord`)
    batches/runs/ID.lock      locked by the process that runs the batch
    batches/runs/ID.cancel    there as soon as somebody has cancelled the batch

Folders have mode 0700 and files 0600, because they contain prompts and answers. A file exists for
clients when its record does, so an upload that was cut short was never there. The process that runs
a batch holds a lock that the kernel frees when the process dies; it alone writes the batch's record
and its two files of answers. An answer is one line, which is appended as a whole; a process that
takes over cuts off a last line that is torn.

The owner of a file or a batch is the `key_id` of an API key; empty without keys. This module
imports the standard library only, because a command reads these files too.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import time
from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from controller.api.state import user_files

FOLDER = "batches"
"""The name of the folder in the cluster's state folder."""
FILE_ID = re.compile(r"file-[0-9a-f]{24}")
BATCH_ID = re.compile(r"batch_[0-9a-f]{24}")
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""The states of a batch that is over."""

MAX_FILE_BYTES = 200 << 20
MAX_LINES = 50_000
MAX_LINE_BYTES = 16 << 20
MAX_CUSTOM_ID_CHARS = 512
MAX_TOLD_ERRORS = 100
"""How many errors in its input a batch shows."""
MAX_RECORD_BYTES = 1 << 20
STALE_S = 60.0
"""What no process has locked and nobody has written to for this long was left by a dead process."""

T = TypeVar("T", bound="_Record")


class _Record:
    id: str

    @classmethod
    def read(cls: type[T], path: Path) -> T:
        """Raises OSError, and ValueError if the file is no such record. Unknown fields are
        ignored."""
        found = json.loads(user_files.read(path, MAX_RECORD_BYTES))
        names = {each.name for each in fields(cls)}  # type: ignore[arg-type]  # a dataclass
        try:
            record = cls(**{name: value for name, value in found.items() if name in names})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"{path.name}: {error}") from error
        if record.id != path.stem:
            raise ValueError(f"{path.name} is about {record.id!r}")
        return record

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self))  # type: ignore[call-overload]  # a dataclass
        user_files.replace(folder / f"{self.id}.json", text + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord(_Record):
    id: str
    owner: str
    filename: str
    purpose: str
    """`batch` or `batch_output`."""
    num_bytes: int
    created_at_s: int
    """Seconds since the epoch, here and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(_Record):
    id: str
    owner: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    """The two files of answers. While the batch runs, and if they stay empty, there is no record of
    them."""
    endpoint: str
    """The path that all lines ask."""
    completion_window: str
    metadata: dict[str, str] | None = None
    status: str = "validating"
    """`validating`, `in_progress`, `finalizing`, or one of `ENDED`."""
    created_at_s: int
    expires_at_s: int
    in_progress_at_s: int | None = None
    finalizing_at_s: int | None = None
    ended_at_s: int | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Why the batch failed: `code`, `message`, `line`, `param`."""
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


class FullError(Exception):
    """The files would take more room than they may."""


class BatchFiles:
    """`max_bytes`: how much room all files may take together. Uploads and new batches are refused
    beyond it; answers are written in any case."""

    def __init__(self, state_dir: str | Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._files = Path(state_dir) / FOLDER / "files"
        self._runs = Path(state_dir) / FOLDER / "runs"

    def prepare(self) -> None:
        """Removes what processes that died have left of uploads. Other processes may use the
        folders meanwhile. Raises OSError."""
        self._make_folders()
        # Listed before the batches are read: a batch has its record before it has answers.
        paths = [*self._files.iterdir(), *self._runs.glob(".*")]
        answers = {
            file_id
            for each in self.batches()
            for file_id in (each.output_file_id, each.error_file_id)
        }
        for path in paths:
            is_known = path.suffix or path.with_suffix(".json").exists() or path.name in answers
            if path.name.startswith(".") or not is_known:
                _remove_if_stale(path)

    def _make_folders(self) -> None:
        for each in (self._files.parent, self._files, self._runs):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def num_bytes(self) -> int:
        """How much room the files take."""
        total = 0
        for each in self._files.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                total += each.lstat().st_size
        return total

    # -- files ---------------------------------------------------------------------------

    def upload(self) -> "Upload":
        """A new file, which is there for clients after `Upload.finish`. Raises OSError, and
        FullError."""
        self._make_folders()
        num_free_bytes = self.max_bytes - self.num_bytes()
        if num_free_bytes <= 0:
            raise FullError
        return Upload(self._files, num_free_bytes)

    def file(self, file_id: str) -> FileRecord | None:
        return _read(FileRecord, self._files, file_id, FILE_ID)

    def files(self) -> list[FileRecord]:
        """All files, the newest first."""
        return _read_all(FileRecord, self._files, FILE_ID)

    def path(self, file_id: str) -> Path:
        """The file's content."""
        if not FILE_ID.fullmatch(file_id):
            raise ValueError(file_id)
        return self._files / file_id

    def delete(self, file_id: str) -> str:
        """Deletes the file, unless a batch needs it. Returns the id of that batch; empty if the
        file is gone. With the last file of a batch its record goes, too. Raises OSError."""
        with self._changing():
            users = [
                each
                for each in self.batches()
                if file_id in (each.input_file_id, each.output_file_id, each.error_file_id)
            ]
            if busy := next((each.id for each in users if not each.has_ended), ""):
                return busy
            for suffix in (".json", ""):
                self.path(file_id).with_suffix(suffix).unlink(missing_ok=True)
            for each in users:
                ids = each.input_file_id, each.output_file_id, each.error_file_id
                if not any(self.path(other).exists() for other in ids):
                    for suffix in (".json", ".lock", ".cancel"):
                        (self._runs / f"{each.id}{suffix}").unlink(missing_ok=True)
        return ""

    # -- batches -------------------------------------------------------------------------

    def new_batch(
        self,
        owner: str,
        input_file_id: str,
        endpoint: str,
        window: tuple[str, int],
        metadata: dict[str, str] | None,
    ) -> BatchRecord | None:
        """A new batch; None if its input is gone. `window`: the time that it may take, as the
        client said it, and in seconds. Raises OSError, and FullError."""
        if self.num_bytes() >= self.max_bytes:
            raise FullError
        now_s = int(time.time())
        record = BatchRecord(
            id=f"batch_{secrets.token_hex(12)}",
            owner=owner,
            input_file_id=input_file_id,
            output_file_id=_new_file_id(),
            error_file_id=_new_file_id(),
            endpoint=endpoint,
            completion_window=window[0],
            metadata=metadata,
            created_at_s=now_s,
            expires_at_s=now_s + window[1],
        )
        with self._changing():
            if self.file(input_file_id) is None:
                return None
            record.write(self._runs)
        return record

    def batch(self, batch_id: str) -> BatchRecord | None:
        return _read(BatchRecord, self._runs, batch_id, BATCH_ID)

    def batches(self) -> list[BatchRecord]:
        """All batches, the newest first."""
        return _read_all(BatchRecord, self._runs, BATCH_ID)

    def batch_ids(self) -> list[str]:
        """The ids of all batches, without a look into their records."""
        return _record_ids(self._runs, BATCH_ID)

    def cancel(self, batch_id: str) -> None:
        """Asks the process that runs the batch, now or later, to cancel it. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        os.close(os.open(self._runs / f"{batch_id}.cancel", flags, 0o600))

    def cancelled_at_s(self, batch_id: str) -> int | None:
        """When the batch was cancelled; None if nobody has cancelled it."""
        try:
            return int((self._runs / f"{batch_id}.cancel").stat().st_mtime)
        except FileNotFoundError:
            return None

    def take(self, batch_id: str) -> "BatchRun | None":
        """Lets this process run the batch; None if another process runs it, or it has ended. Raises
        OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        lock = os.open(self._runs / f"{batch_id}.lock", flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            record = self.batch(batch_id)
            if record is not None and not record.has_ended:
                return BatchRun(self._files, self._runs, record, lock)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One process at a time: no file is deleted while a batch of it is being made."""
        lock = os.open(self._runs, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class Upload:
    """A file that a client is sending."""

    def __init__(self, folder: Path, num_free_bytes: int) -> None:
        self.file_id = _new_file_id()
        self._folder = folder
        self._num_free_bytes = num_free_bytes
        self._num_bytes = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file = os.fdopen(os.open(folder / self.file_id, flags, 0o600), "wb", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX)  # so that nobody takes it for a dead process's

    def write(self, piece: bytes) -> None:
        """Raises OSError, and FullError."""
        self._num_bytes += len(piece)
        if self._num_bytes > self._num_free_bytes:
            raise FullError
        _write_all(self._file.fileno(), piece)

    def finish(self, owner: str, filename: str, purpose: str) -> FileRecord:
        """Raises OSError."""
        os.fsync(self._file.fileno())
        record = FileRecord(
            id=self.file_id,
            owner=owner,
            filename=filename,
            purpose=purpose,
            num_bytes=self._num_bytes,
            created_at_s=int(time.time()),
        )
        record.write(self._folder)
        self._file.close()
        return record

    def give_up(self) -> None:
        """Removes what was written, unless the upload was finished."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                (self._folder / self.file_id).unlink()
            self._file.close()


class BatchRun:
    """A batch, while this process runs it. Its methods wait for the disk."""

    def __init__(self, files: Path, runs: Path, record: BatchRecord, lock: int) -> None:
        self.record = record
        self._runs, self._lock = runs, lock
        self._files = files
        self._input = -1
        self._answers: dict[bool, int] = {}
        """The descriptors of the output (False) and of the errors (True)."""
        self.lines = Lines()

    def open(self) -> "Done | list[dict[str, Any]]":
        """Opens the files, and reads what was done before; or the errors in the input. Raises
        OSError."""
        path = self._files / self.record.input_file_id
        self._input = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        found = read_lines(path, self.record.endpoint)
        if isinstance(found, list):
            return found
        self.lines = found
        numbers = {custom_id: number for number, custom_id in enumerate(found.custom_ids)}
        done: list[set[int]] = []
        for is_error, file_id in ((False, "output_file_id"), (True, "error_file_id")):
            path = self._files / getattr(self.record, file_id)
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            self._answers[is_error] = os.open(path, flags, 0o600)
            answered = _answered(self._answers[is_error])
            done.append({numbers[each] for each in answered if each in numbers})
        return Done(*done)

    def body_of(self, number: int) -> bytes:
        """The body of the line's request, as JSON. Raises OSError."""
        offset, length = self.lines.places[2 * number], self.lines.places[2 * number + 1]
        line = json.loads(os.pread(self._input, length, offset))
        return json.dumps(line["body"], separators=(",", ":")).encode()

    def append(self, answers: Collection[tuple[bool, dict[str, Any]]]) -> None:
        """Appends answers to the output, or (True) to the errors. Each one has its `custom_id`.
        Returns when they are on disk. Raises OSError; then none of them was appended to the file
        that failed."""
        for is_error, descriptor in self._answers.items():
            text = b"".join(
                json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode(
                    "utf-8", "replace"
                )
                + b"\n"
                for errs, answer in answers
                if errs == is_error
            )
            if not text:
                continue
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, text)
                os.fdatasync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise

    def save(self, **changes: Any) -> None:
        """Writes the record with these changes. Raises OSError."""
        changed = replace(self.record, **changes)
        changed.write(self._runs)
        self.record = changed

    def finish(self, status: str, errors: list[dict[str, Any]], **counts: int) -> None:
        """Makes the files of answers known, and ends the batch with these counts. May be repeated
        after an OSError, which it raises if something cannot be written."""
        now_s = int(time.time())
        if status == "completed":
            self.save(status="finalizing", finalizing_at_s=now_s, **counts)
        for file_id, name in (
            (self.record.output_file_id, "output"),
            (self.record.error_file_id, "errors"),
        ):
            path = self._files / file_id
            if path.exists() and (num_bytes := path.stat().st_size):
                FileRecord(
                    id=file_id,
                    owner=self.record.owner,
                    filename=f"{self.record.id}_{name}.jsonl",
                    purpose="batch_output",
                    num_bytes=num_bytes,
                    created_at_s=now_s,
                ).write(self._files)
            else:
                path.unlink(missing_ok=True)
        self.save(status=status, errors=errors, ended_at_s=int(time.time()), **counts)

    def close(self) -> None:
        """Lets another process run the batch, if it has not ended."""
        for each in (self._input, *self._answers.values(), self._lock):
            if each >= 0:
                os.close(each)
        self._input = self._lock = -1
        self._answers = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Done:
    """The numbers of the lines whose answers are in the output and in the errors."""

    completed: set[int]
    failed: set[int]


# -- the lines of a batch --------------------------------------------------------------------------


class Lines:
    """Where the lines are: for each its offset and its length, one after the other."""

    def __init__(self) -> None:
        self.places = array("Q")
        self.custom_ids: list[str] = []

    def __len__(self) -> int:
        return len(self.custom_ids)


def read_lines(path: Path, endpoint: str) -> Lines | list[dict[str, Any]]:
    """The lines of a batch; or what is wrong with them, at most MAX_TOLD_ERRORS. Blank lines are
    left out. Raises OSError."""
    lines, errors = Lines(), list[dict[str, Any]]()
    seen: set[str] = set()
    offset = 0
    with path.open("rb") as file:
        for number, text in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            begin, offset = offset, offset + len(text)
            if not text.strip():
                continue
            if len(lines) == MAX_LINES:
                errors.append(_error("too_many_lines", f"more than {MAX_LINES} lines", number))
                break
            if len(text) > MAX_LINE_BYTES:
                why = f"longer than {MAX_LINE_BYTES} bytes"
                errors.append(_error("line_too_long", why, number))
                break
            if isinstance(found := _custom_id(text, endpoint, seen), str):
                seen.add(found)
                lines.places.extend((begin, len(text)))
                lines.custom_ids.append(found)
                continue
            errors.append(found | {"line": number})
            if len(errors) == MAX_TOLD_ERRORS:
                break
    if not errors and not lines.custom_ids:
        errors.append(_error("empty_file", "the file has no lines", None))
    return errors or lines


def _custom_id(text: bytes, endpoint: str, seen: set[str]) -> str | dict[str, Any]:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return _error("invalid_json_line", "the line is not JSON")
    if not isinstance(line, dict):
        return _error("invalid_request", "the line is not a JSON object")
    custom_id, body = line.get("custom_id"), line.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        why = f"custom_id must be a text of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        return _error("invalid_custom_id", why, param="custom_id")
    if not custom_id.isascii() and not _is_text(custom_id):
        return _error("invalid_custom_id", "custom_id is not valid Unicode", param="custom_id")
    if custom_id in seen:
        why = "an earlier line has the same custom_id"
        return _error("duplicate_custom_id", why, param="custom_id")
    if line.get("method") != "POST":
        return _error("invalid_method", "method must be POST", param="method")
    if line.get("url") != endpoint:
        why = f"url must be {endpoint}, the endpoint of the batch"
        return _error("mismatched_endpoint", why, param="url")
    if not isinstance(body, dict):
        return _error("invalid_request", "body must be a JSON object", param="body")
    if body.get("stream"):
        why = "a line of a batch cannot be streamed"
        return _error("invalid_request", why, param="body.stream")
    if body.get("priority") is not None:
        why = "all lines of a batch have the lowest priority"
        return _error("invalid_request", why, param="body.priority")
    return custom_id


def _is_text(text: str) -> bool:
    """Whether the text can be written: JSON may name half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _error(
    code: str, message: str, line: int | None = None, param: str | None = None
) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}


def _answered(descriptor: int) -> list[str]:
    """The `custom_id`s of the answers in the file. Cuts off what is behind the last whole line.
    Raises OSError."""
    found, end = list[str](), 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        for text in file:
            try:
                if not text.endswith(b"\n"):
                    break
                found.append(str(json.loads(text)["custom_id"]))
            except (ValueError, KeyError, TypeError):
                break
            end += len(text)
    if end < os.fstat(descriptor).st_size:
        os.ftruncate(descriptor, end)
    return found


# -- on disk ---------------------------------------------------------------------------------------


def _new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def _write_all(descriptor: int, text: bytes) -> None:
    """Raises OSError; a disk that is full may have taken a part."""
    left = memoryview(text)
    while left:
        if not (num_bytes := os.write(descriptor, left)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left = left[num_bytes:]


def _read(kind: type[T], folder: Path, name: str, form: re.Pattern[str]) -> T | None:
    """The record; None if there is none that can be read."""
    if not form.fullmatch(name):
        return None
    try:
        return kind.read(folder / f"{name}.json")
    except (OSError, ValueError):
        return None


def _read_all(kind: type[T], folder: Path, form: re.Pattern[str]) -> list[T]:
    ids = _record_ids(folder, form)
    found = [each for name in ids if (each := _read(kind, folder, name, form)) is not None]
    return sorted(found, key=lambda each: (-_created_at_s(each), each.id))


def _record_ids(folder: Path, form: re.Pattern[str]) -> list[str]:
    try:
        paths = list(folder.glob("*.json"))
    except FileNotFoundError:
        return []
    return sorted(path.stem for path in paths if form.fullmatch(path.stem))


def _created_at_s(record: Any) -> int:
    return int(record.created_at_s)


def _remove_if_stale(path: Path) -> None:
    """Removes the file, unless a process has it locked or may be about to."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_old = time.time() - path.stat().st_mtime > STALE_S
        if is_old and not path.with_suffix(".json").exists():
            path.unlink()
