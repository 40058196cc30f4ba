"""What is sent to an endpoint once: the bytes, their pace, and when the client leaves."""

import base64
import json
from dataclasses import dataclass, replace
from typing import Any

HOST = b"127.0.0.1"  # one of the names that an endpoint without keys answers to
# Of the built-in model, whose context ends an answer that nothing else ends.
CONTEXT_TOKENS = 8192
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
LONG_ANSWER_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """`head`: request line and headers with their line ends. `cut_at`: the sender pauses before
    these places of the body, `pause_s` each time. `leaves_after_s`: the client closes so long
    after its last byte, whatever it has got. `may_break_http`: it need be no HTTP, so that an
    answer without our shape, or none, is no finding."""

    family: str
    name: str
    head: bytes
    body: bytes = b""
    cut_at: tuple[int, ...] = ()
    pause_s: float = 0.0
    leaves_after_s: float | None = None
    may_break_http: bool = False

    def pieces(self) -> list[bytes]:
        ends = sorted({min(place, len(self.body)) for place in self.cut_at} | {len(self.body)})
        begins = [0, *ends[:-1]]
        first, *rest = (self.body[a:b] for a, b in zip(begins, ends, strict=True))
        return [self.head + first, *rest]

    @property
    def json_body(self) -> dict[str, Any] | None:
        """Of a request that is plain JSON and of a known length; such a one can be shrunk."""
        if b"content-length:" not in self.head.lower() or self.may_break_http:
            return None
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    @property
    def may_be_long(self) -> bool:
        """Whether its answers may have so many tokens that they take longer than a client waits: a
        shrunk or misspelt limit is none."""
        body = self.json_body
        if body is None:
            return False
        limits: list[int] = [body[name] for name in TOKEN_LIMITS if isinstance(body.get(name), int)]
        num_choices: int = body["n"] if isinstance(body.get("n"), int) else 1
        return min([*limits, CONTEXT_TOKENS]) * num_choices > LONG_ANSWER_TOKENS

    @property
    def path(self) -> str:
        return self.head.split(b" ")[1].decode("latin-1") if self.head.count(b" ") > 1 else ""

    def with_json(self, body: dict[str, Any]) -> "Case":
        found = post(self.family, self.name, self.path, encode(body))
        return replace(found, leaves_after_s=self.leaves_after_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "family": self.family,
            "name": self.name,
            "head": self.head.decode("latin-1"),
            **_body_to_json(self.body),
            "cut_at": list(self.cut_at),
            "pause_s": self.pause_s,
            "leaves_after_s": self.leaves_after_s,
            "may_break_http": self.may_break_http,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Case":
        found = dict(found)
        text, packed = found.pop("body", None), found.pop("body_base64", "")
        body = base64.b64decode(packed) if text is None else text.encode()
        head, cut_at = found.pop("head").encode("latin-1"), tuple(found.pop("cut_at"))
        return cls(**found, head=head, body=body, cut_at=cut_at)


def _body_to_json(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def head(method: str, path: str, *headers: tuple[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1", "replace")


def post(family: str, name: str, path: str, body: bytes, *headers: tuple[str, str]) -> Case:
    """A JSON request as any client sends it."""
    own = (
        ("Host", HOST.decode()),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    )
    return Case(family, name, head("POST", path, *own, *headers), body)


def plain() -> Case:
    """Nothing is wrong with this request, so it tells whether the others reach the app at all."""
    body = {"model": "embedded", "prompt": "x", "max_tokens": 1}
    return post("", "plain", "/v1/completions", encode(body))


def encode(body: object) -> bytes:
    return json.dumps(body).encode()
