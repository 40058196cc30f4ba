"""The reader of answers: any framing, in any pieces, gives the same answer."""

import json

import pytest

from llumctl.lab.bench_client import Answer, BadAnswerError, ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TRICKY = 'a "token_ids":[9] \\n\\n data: [DONE] \r\n\r\n0\r\n\r\n é'


def chunk(
    tokens: list[int] | None, finish: str | None = None, text: str = " w", **more: object
) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    if tokens is not None:
        choice["token_ids"] = tokens
    body = {"id": "cmpl-1", "model": "m", "choices": [choice | more]}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def usage(prompt: int, outputs: int) -> bytes:
    body = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": outputs}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


EVENTS = [
    chunk([11], prompt_token_ids=[1, 2, 3]),
    chunk([12], text=TRICKY),
    chunk([13, 14]),
    chunk([15], "length"),
    usage(3, 5),
    b"data: [DONE]\n\n",
]


def framed(events: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def read(pieces: list[bytes]) -> tuple[Answer, ResponseReader]:
    """The n-th piece comes at second n."""
    reader = ResponseReader(Answer())
    for second, piece in enumerate(pieces):
        reader.feed(piece, float(second))
    return reader.answer, reader


def check_whole(answer: Answer, reader: ResponseReader) -> None:
    assert reader.done
    assert reader.keeps_alive
    assert answer.status == 200
    assert answer.token_ids == [11, 12, 13, 14, 15]
    assert len(answer.token_times_s) == 4
    assert (answer.num_prompt_tokens, answer.num_output_tokens) == (3, 5)
    assert answer.finish_reasons == ["length"]
    assert answer.num_done_marks == 1
    assert answer.errors == []


def test_byte_by_byte() -> None:
    data = CHUNKED + framed(EVENTS)
    answer, reader = read([data[i : i + 1] for i in range(len(data))])
    check_whole(answer, reader)
    ends = [data.index(event) + len(event) for event in EVENTS[:4]]
    # An event counts once its line is whole: the empty one behind it says nothing.
    assert [found + 1 for found in answer.token_times_s] == [end - 1 for end in ends]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("chunk_size", [1, 50])
def test_any_pieces_of_chunks_that_are_no_events(size: int, chunk_size: int) -> None:
    whole = b"".join(EVENTS)
    chunks = [whole[i : i + chunk_size] for i in range(0, len(whole), chunk_size)]
    data = CHUNKED + framed(chunks)
    check_whole(*read([data[i : i + size] for i in range(0, len(data), size)]))


def test_lines_that_end_in_cr_lf_comments_and_extensions() -> None:
    events = [b": ping\r\n\r\n", *(event.replace(b"\n\n", b"\r\n\r\n") for event in EVENTS)]
    data = b"".join(b"%X;a=b\r\n%s\r\n" % (len(event), event) for event in events)
    check_whole(*read([CHUNKED + data + b"0\r\nX-Trailer: 1\r\n\r\n"]))


def test_a_stream_that_the_connection_ends() -> None:
    answer, reader = read([HEAD + b"\r\n", *EVENTS])
    assert list(answer.token_times_s) == [1.0, 2.0, 3.0, 4.0]
    assert not reader.done
    reader.end(99.0)
    assert reader.done
    assert not reader.keeps_alive
    assert answer.token_ids == [11, 12, 13, 14, 15]
    assert answer.ended_s == 99.0
    _, reader = read([CHUNKED + framed(EVENTS)[:-5]])
    reader.end(99.0)
    assert not reader.done, "it was cut"


def test_without_token_ids_the_events_count() -> None:
    for events, num_tokens in (
        # The last event has no token of its own.
        ([chunk(None), chunk(None, text=""), chunk(None, "length", text="")], 2),
        ([chunk([]), chunk([5]), chunk([], "length")], 1),
    ):
        answer, _ = read([CHUNKED + framed([*events, *EVENTS[4:]])])
        assert len(answer.token_times_s) == num_tokens


def test_errors_in_the_stream() -> None:
    error = {"error": {"message": "it died", "type": "x", "param": None, "code": 503}}
    plain = {"error": "so be it"}
    events = [b"data: " + json.dumps(body).encode() + b"\n\n" for body in (error, plain)]
    answer, reader = read([CHUNKED + framed([EVENTS[0], *events, EVENTS[-1]])])
    assert reader.done
    assert answer.errors == [("503", "it died"), ("", "so be it")]
    assert answer.token_ids == [11]


def test_a_refusal() -> None:
    for head, body, keeps_alive in (
        (b"HTTP/1.1 503 Gone\r\nContent-Length: 5\r\nConnection: close", b"stop!", False),
        (b"HTTP/1.1 503 Gone\r\ncontent-length: 0", b"", True),
        (b"HTTP/1.0 503 Gone\r\ncontent-length: 0", b"", False),
    ):
        answer, reader = read([head + b"\r\n\r\n" + body])
        assert reader.done
        assert reader.keeps_alive is keeps_alive
        assert (answer.status, answer.body) == (503, body)


def test_what_is_no_answer() -> None:
    for data in (
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"3\r\nabcdef\r\n",
        CHUNKED + framed([b"data: {\n\n"]),
        CHUNKED + framed([b'data: {"choices": 5}\n\n']),
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (1 << 17),
        CHUNKED + framed(EVENTS) + b"HTTP/1.1 200 OK\r\n",
    ):
        with pytest.raises(BadAnswerError):
            read([data])
