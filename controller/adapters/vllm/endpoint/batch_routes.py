"""The routes of the batch API, `/v1/files` and `/v1/batches`, as OpenAI's clients call them.

A file or a batch is there for the API key that made it, and for no other. Nothing here imports
vLLM.
"""

import asyncio
import functools
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, Field
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, Response

from controller.adapters.vllm.endpoint.headers import ASKED_KEY, RefusedError
from controller.api.state.batch_files import (
    MAX_FILE_BYTES,
    BatchFiles,
    BatchRecord,
    FileRecord,
    FullError,
    Upload,
)

FILES, BATCHES = "/v1/files", "/v1/batches"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""What the lines of a batch may ask."""
MAX_UPLOAD_BYTES = MAX_FILE_BYTES + (64 << 10)
"""A form around the largest file."""
PURPOSE = "batch"
MAX_FIELD_BYTES = 4096
MAX_NAME_CHARS = 255
MAX_WINDOW_HOURS = 7 * 24
# It logs each form that it cannot read.
logging.getLogger("python_multipart").setLevel(logging.ERROR)
_WINDOW = re.compile(r"([1-9][0-9]{0,2})h")

_MetadataKey = Annotated[str, Field(max_length=64)]
_MetadataValue = Annotated[str, Field(max_length=512)]


class NewBatch(BaseModel):
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: Annotated[dict[_MetadataKey, _MetadataValue], Field(max_length=16)] | None = None


Handler = Callable[..., Awaitable[Any]]
_Listed = TypeVar("_Listed", FileRecord, BatchRecord)


def add_routes(app: FastAPI, files: BatchFiles, look: Callable[[], None]) -> None:
    """`look`: has this process look for new batches."""
    routes = BatchRoutes(files, look)
    for method, path, handler in (
        ("POST", FILES, routes.upload_file),
        ("GET", FILES, routes.list_files),
        ("GET", f"{FILES}/{{file_id}}", routes.retrieve_file),
        ("GET", f"{FILES}/{{file_id}}/content", routes.retrieve_file_content),
        ("DELETE", f"{FILES}/{{file_id}}", routes.delete_file),
        ("POST", BATCHES, routes.create_batch),
        ("GET", BATCHES, routes.list_batches),
        ("GET", f"{BATCHES}/{{batch_id}}", routes.retrieve_batch),
        ("POST", f"{BATCHES}/{{batch_id}}/cancel", routes.cancel_batch),
    ):
        app.add_api_route(path, _answering(handler), methods=[method], response_model=None)


def _answering(handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def answer(*args: Any, **named: Any) -> Response:
        try:
            found = await handler(*args, **named)
        except RefusedError as refused:
            return _error(refused.status, refused.message, refused.param)
        except FullError:
            why = (
                "the files of batches take all the room that endpoint.batch_files_gib allows them;"
                " delete files that are not needed any more"
            )
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        except OSError as error:
            why = f"the files of batches cannot be written: {error.strerror}"
            return _error(HTTPStatus.INSUFFICIENT_STORAGE, why)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


def _error(status: HTTPStatus, message: str, param: str | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "param": param}}, status)


class BatchRoutes:
    def __init__(self, files: BatchFiles, look: Callable[[], None]) -> None:
        self._files = files
        self._look = look

    # -- files ---------------------------------------------------------------------------

    async def upload_file(self, request: Request) -> Any:
        """Uploads the lines of a batch: a form (multipart/form-data) with `purpose=batch` and
        `file`."""
        form = _Form(request.headers.get("content-type"), self._files)
        try:
            async for piece in request.stream():
                if piece:
                    await asyncio.to_thread(form.feed, piece)
            record = await asyncio.to_thread(form.finish, ASKED_KEY.get())
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        except FormParserError as error:
            raise _bad(f"the form cannot be read: {error}") from error
        finally:
            form.close()
        return _file_object(record)

    async def list_files(
        self,
        purpose: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
    ) -> Any:
        """Lists files, the newest first unless `order` is `asc`."""
        found = await asyncio.to_thread(self._files.files)
        mine = [
            each
            for each in found
            if each.owner == ASKED_KEY.get() and purpose in (None, each.purpose)
        ]
        if order == "asc":
            mine.reverse()
        return _page(mine, after, limit, _file_object)

    async def retrieve_file(self, file_id: str) -> Any:
        return _file_object(self._file(file_id))

    async def retrieve_file_content(self, file_id: str) -> Any:
        record = self._file(file_id)
        path = self._files.path(record.id)
        return FileResponse(path, media_type="application/jsonl", filename=record.filename)

    async def delete_file(self, file_id: str) -> Any:
        """Deletes a file, unless a batch that has not ended needs it."""
        record = self._file(file_id)
        if batch_id := await asyncio.to_thread(self._files.delete, record.id):
            why = f"{batch_id} needs this file; cancel it, or wait for its end"
            raise RefusedError(HTTPStatus.CONFLICT, why)
        return {"id": record.id, "object": "file", "deleted": True}

    def _file(self, file_id: str) -> FileRecord:
        record = self._files.file(file_id)
        if record is None or record.owner != ASKED_KEY.get():
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no file {file_id[:80]!r}", "id")
        return record

    # -- batches -------------------------------------------------------------------------

    async def create_batch(self, wanted: NewBatch) -> Any:
        """Begins a batch. Its lines are checked before the first one is asked."""
        if wanted.endpoint not in ENDPOINTS:
            raise _bad(f"endpoint must be one of {', '.join(ENDPOINTS)}", "endpoint")
        found = _WINDOW.fullmatch(wanted.completion_window)
        if found is None or int(found[1]) > MAX_WINDOW_HOURS:
            why = f"completion_window must be 1h to {MAX_WINDOW_HOURS}h, such as 24h"
            raise _bad(why, "completion_window")
        record = self._file(wanted.input_file_id)
        if record.purpose != PURPOSE:
            raise _bad(f"the purpose of {record.id} is {record.purpose}", "input_file_id")
        batch = await asyncio.to_thread(
            self._files.new_batch,
            record.owner,
            record.id,
            wanted.endpoint,
            (wanted.completion_window, int(found[1]) * 3600),
            wanted.metadata,
        )
        if batch is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no file {record.id!r}")
        self._look()
        return self._batch_object(batch)

    async def list_batches(
        self, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
    ) -> Any:
        """Lists batches, the newest first."""
        found = await asyncio.to_thread(self._files.batches)
        mine = [each for each in found if each.owner == ASKED_KEY.get()]
        return _page(mine, after, limit, self._batch_object)

    async def retrieve_batch(self, batch_id: str) -> Any:
        return self._batch_object(self._batch(batch_id))

    async def cancel_batch(self, batch_id: str) -> Any:
        """Cancels a batch. Lines that are not answered yet are never answered."""
        record = self._batch(batch_id)
        if record.has_ended:
            raise RefusedError(HTTPStatus.CONFLICT, f"the batch has ended: {record.status}")
        await asyncio.to_thread(self._files.cancel, record.id)
        self._look()
        return self._batch_object(self._batch(batch_id))

    def _batch(self, batch_id: str) -> BatchRecord:
        record = self._files.batch(batch_id)
        if record is None or record.owner != ASKED_KEY.get():
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no batch {batch_id[:80]!r}", "id")
        return record

    def _batch_object(self, record: BatchRecord) -> dict[str, Any]:
        cancelled_at_s = self._files.cancelled_at_s(record.id)
        status = record.status
        if cancelled_at_s is not None and not record.has_ended:
            status = "cancelling"
        ended_at = {f"{record.status}_at": record.ended_at_s} if record.has_ended else {}
        return {
            "id": record.id,
            "object": "batch",
            "endpoint": record.endpoint,
            "errors": {"object": "list", "data": record.errors} if record.errors else None,
            "input_file_id": record.input_file_id,
            "completion_window": record.completion_window,
            "status": status,
            "output_file_id": self._shown(record.output_file_id),
            "error_file_id": self._shown(record.error_file_id),
            "created_at": record.created_at_s,
            "in_progress_at": record.in_progress_at_s,
            "expires_at": record.expires_at_s,
            "finalizing_at": record.finalizing_at_s,
            "completed_at": None,
            "failed_at": None,
            "expired_at": None,
            "cancelling_at": cancelled_at_s,
            "cancelled_at": None,
            **ended_at,
            "request_counts": {
                "total": record.num_lines,
                "completed": record.num_completed,
                "failed": record.num_failed,
            },
            "metadata": record.metadata,
        }

    def _shown(self, file_id: str) -> str | None:
        return file_id if self._files.file(file_id) is not None else None


def _bad(message: str, param: str | None = None) -> RefusedError:
    return RefusedError(HTTPStatus.BAD_REQUEST, message, param)


def _file_object(record: FileRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.num_bytes,
        "created_at": record.created_at_s,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
    }


def _page(
    found: Sequence[_Listed],
    after: str | None,
    limit: int,
    shown_as: Callable[[_Listed], dict[str, Any]],
) -> dict[str, Any]:
    """`after`: the id behind which the page begins. Raises RefusedError if there is none such. Only
    what is on the page is passed to `shown_as`, which may read files."""
    begin = 0
    if after is not None:
        ids = [each.id for each in found]
        if after not in ids:
            raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no {after[:80]!r}", "after")
        begin = ids.index(after) + 1
    shown = [shown_as(each) for each in found[begin : begin + limit]]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(found) > begin + limit,
    }


class _Form:
    """Reads a form piece by piece and writes its file to its place, so that no prompt is kept in
    memory or in a temporary folder. Its methods wait for the disk. They raise RefusedError,
    FullError, OSError and FormParserError."""

    def __init__(self, content_type: str | None, files: BatchFiles) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise _bad("upload a file as multipart/form-data", "file")
        self._files = files
        self._upload: Upload | None = None
        self._filename = ""
        self._fields: dict[bytes, bytes] = {}
        self._field: bytes | None = None
        """The name of the field that is being read; None for the file."""
        self._header, self._value = b"", b""
        self._disposition = b""
        self._num_bytes = 0
        self._ended = False
        self._parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_end": self._end,
            },
        )

    def feed(self, piece: bytes) -> None:
        self._parser.write(piece)

    def finish(self, owner: str) -> FileRecord:
        if not self._ended:
            raise _bad("the form is not complete")
        purpose = self._fields.get(b"purpose", b"").decode("utf-8", "replace")
        if purpose != PURPOSE:
            raise _bad(f"purpose must be {PURPOSE}", "purpose")
        if self._upload is None:
            raise _bad("the form has no file", "file")
        return self._upload.finish(owner, self._filename, purpose)

    def close(self) -> None:
        """Removes what was written, unless the form was finished."""
        if self._upload is not None:
            self._upload.give_up()

    def _part_begins(self) -> None:
        self._header = self._value = self._disposition = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = self._bounded(self._header, data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value = self._bounded(self._value, data[start:end])

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"")
        if name != b"file":
            self._field = name
            self._fields[name] = b""
            if len(self._fields) > 16:
                raise _bad("the form has too many fields")
            return
        if self._upload is not None:
            raise _bad("the form has two files", "file")
        self._field = None
        given = options.get(b"filename", b"").decode("utf-8", "replace")
        printable = "".join(each if each.isprintable() else "_" for each in Path(given).name)
        self._filename = printable[:MAX_NAME_CHARS] or "batch.jsonl"
        self._upload = self._files.upload()

    def _data(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if self._field is not None:
            self._fields[self._field] = self._bounded(self._fields[self._field], piece)
            return
        self._num_bytes += len(piece)
        if self._num_bytes > MAX_FILE_BYTES:
            why = f"the file is larger than {MAX_FILE_BYTES} bytes"
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why, "file")
        assert self._upload is not None
        self._upload.write(piece)

    def _end(self) -> None:
        self._ended = True

    def _bounded(self, text: bytes, more: bytes) -> bytes:
        if len(text) + len(more) > MAX_FIELD_BYTES:
            raise _bad(f"a field of the form is longer than {MAX_FIELD_BYTES} bytes")
        return text + more
