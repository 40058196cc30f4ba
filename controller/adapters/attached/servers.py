"""What attached servers of each kind are asked, and how their answers read: vLLM, SGLang and
llama.cpp. A dialect is plain functions from values to values; `server_engine.py` makes the calls,
and `identify` makes those of the moment at which a server is attached. A server of another kind has
OpenAI's API and no dialect: it only gets requests as they came, and its metrics are not read.

Facts from each project's documentation, and from a run where docs/attached-servers.md says so:

    vLLM       POST /v1/completions takes a list of ids as the prompt; with `return_token_ids` each
               streamed choice has `token_ids`. /metrics always has `vllm:cache_config_info`.
    SGLang     POST /generate takes `input_ids`; each streamed event has `output_ids`, either all so
               far or the new ones, by an option of the server: `completion_tokens` tells which.
               /metrics only with `--enable-metrics`.
    llama.cpp  POST /completion takes a list of ids as the prompt; with `return_tokens` each
               streamed event has `tokens`. The token that ends an answer is not among them.
               /metrics only with `--metrics`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from controller.core.fleet.attached import AttachedServer, ServerKind

PROBE = "/health"
MODELS = "/v1/models"
METRICS = "/metrics"
MAX_KEY_BYTES = 4096
CALL_TIMEOUT_S = 10.0
DEFAULT_BLOCK_SIZE = 16
SAMPLE = "The 7 quick foxes, 42 of them, jumped over «naïve» dogs.\n\tDone: 1,000%!"
"""Two tokenizers that give the same ids for this text are taken to be the same."""


class ServerError(Exception):
    """The server cannot be attached or used, for the reason in the text."""


def headers(server: AttachedServer) -> dict[str, str]:
    """The headers of each call. The key's file is read each time, so that a key may be changed.
    Raises ServerError if the file cannot be read; the error quotes nothing of it."""
    if not server.key_file:
        return {}
    try:
        with Path(server.key_file).open("rb") as file:
            key = file.read(MAX_KEY_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"the key file {server.key_file} cannot be read: {error}") from None
    if not key.isascii() or not key.isprintable() or not key:
        raise ServerError(f"the key file {server.key_file} has no key in one line of ASCII")
    return {"authorization": f"Bearer {key}"}


def probe_of(kind: ServerKind) -> str:
    """The path that answers with 200 while the server serves. OpenAI's API has no path for that."""
    return MODELS if kind == "openai" else PROBE


# -- requests --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generation:
    """A request for `max_tokens` more tokens after `token_ids`. `eos_token_id`: None if the answer
    does not end at the model's end token."""

    token_ids: Sequence[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    eos_token_id: int | None = None
    stop_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A part of an answer. `finish_reason`: vLLM's word; None while more comes. `ends_with`: the
    token that ended the answer, if the server names it or is known to leave it out."""

    token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    ends_with: int | None = None


class Dialect(Protocol):
    path: str
    """Where requests are sent."""

    def body(self, server: AttachedServer, wanted: Generation) -> Mapping[str, Any]: ...

    def event(self, told: Any, num_seen: int, wanted: Generation) -> Event:
        """Reads one streamed event. `num_seen`: how many tokens of the answer came before. Raises
        ServerError, KeyError, TypeError or IndexError if it cannot be read."""

    def load(self, page: "Metrics") -> "ServerLoad": ...


def error_in(told: Any) -> str:
    """The error that an event or an answer reports; empty if it reports none."""
    error = told.get("error") if isinstance(told, Mapping) else None
    if not error:
        return ""
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message)[:300]


class _Vllm:
    path = "/v1/completions"

    def body(self, server: AttachedServer, wanted: Generation) -> Mapping[str, Any]:
        return {
            "model": server.model,
            "prompt": list(wanted.token_ids),
            "max_tokens": wanted.max_tokens,
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "top_k": wanted.top_k,
            "min_p": wanted.min_p,
            "repetition_penalty": 1.0,  # else a default of the model's files counts
            "ignore_eos": wanted.eos_token_id is None,
            "stop_token_ids": list(wanted.stop_token_ids),
            "stream": True,
            "return_token_ids": True,
        }

    def event(self, told: Any, num_seen: int, wanted: Generation) -> Event:
        del num_seen, wanted
        if not told["choices"]:
            return Event()
        choice = told["choices"][0]
        ids, reason = choice.get("token_ids"), choice["finish_reason"]
        if ids is None and reason is None and choice["text"]:
            raise ServerError("it returns no token ids: this vLLM does not know return_token_ids")
        return Event(ids or (), reason)

    def load(self, page: "Metrics") -> "ServerLoad":
        return ServerLoad(
            num_running=page.total("vllm:num_requests_running"),
            num_waiting=page.total("vllm:num_requests_waiting"),
            usage=page.mean("vllm:kv_cache_usage_perc"),
            num_tokens=page.total("vllm:generation_tokens", "vllm:prompt_tokens"),
        )


class _Sglang:
    path = "/generate"

    def body(self, server: AttachedServer, wanted: Generation) -> Mapping[str, Any]:
        del server
        return {
            "input_ids": list(wanted.token_ids),
            "stream": True,
            "sampling_params": {
                "max_new_tokens": wanted.max_tokens,
                "temperature": wanted.temperature,
                "top_p": wanted.top_p,
                "top_k": wanted.top_k or -1,
                "min_p": wanted.min_p,
                "ignore_eos": wanted.eos_token_id is None,
                "stop_token_ids": list(wanted.stop_token_ids),
                "skip_special_tokens": False,
            },
        }

    def event(self, told: Any, num_seen: int, wanted: Generation) -> Event:
        ids, meta = told["output_ids"], told["meta_info"]
        num_now = meta["completion_tokens"]
        if num_now == len(ids):  # all so far; also the first of the new ones
            ids = ids[num_seen:]
        elif num_now != num_seen + len(ids):
            raise ServerError(f"it counts {num_now} tokens, and {num_seen} + {len(ids)} came")
        finish = meta.get("finish_reason")
        if finish is None:
            return Event(ids)
        matched = finish.get("matched")
        ends_with = matched if isinstance(matched, int) else wanted.eos_token_id
        reason = finish["type"]
        return Event(ids, reason, ends_with if reason == "stop" else None)

    def load(self, page: "Metrics") -> "ServerLoad":
        return ServerLoad(
            num_running=page.total("sglang:num_running_reqs"),
            num_waiting=page.total("sglang:num_queue_reqs"),
            usage=page.mean("sglang:token_usage"),
            num_tokens=page.total("sglang:generation_tokens", "sglang:prompt_tokens"),
        )


class _LlamaCpp:
    path = "/completion"

    def body(self, server: AttachedServer, wanted: Generation) -> Mapping[str, Any]:
        del server
        return {
            "prompt": list(wanted.token_ids),
            "n_predict": wanted.max_tokens,
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "top_k": wanted.top_k,
            "min_p": wanted.min_p,
            # By default it chooses with several more samplers than the client asked for.
            "samplers": ["top_k", "top_p", "min_p", "temperature"],
            "repeat_penalty": 1.0,
            "ignore_eos": wanted.eos_token_id is None,
            "cache_prompt": True,
            "stream": True,
            "return_tokens": True,
        }

    def event(self, told: Any, num_seen: int, wanted: Generation) -> Event:
        del num_seen
        ids = told.get("tokens") or ()
        if not told["stop"]:
            return Event(ids)
        is_end = told.get("stop_type") == "eos"
        return Event(ids, "stop" if is_end else "length", wanted.eos_token_id if is_end else None)

    def load(self, page: "Metrics") -> "ServerLoad":
        return ServerLoad(
            num_running=page.total("llamacpp:requests_processing"),
            num_waiting=page.total("llamacpp:requests_deferred"),
            usage=page.mean("llamacpp:kv_cache_usage_ratio"),  # gone since the middle of 2025
            num_tokens=page.total("llamacpp:tokens_predicted", "llamacpp:prompt_tokens"),
        )


DIALECTS: Mapping[ServerKind, Dialect] = {
    "vllm": _Vllm(),
    "sglang": _Sglang(),
    "llamacpp": _LlamaCpp(),
}

# -- metrics ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What a server's metrics say; None: they do not say it. `usage`: the share of the KV cache
    that is in use. `num_tokens`: tokens of prompts and answers since the server began."""

    num_running: float | None = None
    num_waiting: float | None = None
    usage: float | None = None
    num_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Metrics:
    """The samples of a page in Prometheus's format: by name of the metric, the values of its series
    with their labels."""

    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    @staticmethod
    def of(text: str) -> "Metrics":
        """Raises ValueError for a text that is no such page."""
        found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return Metrics(found)

    def total(self, *names: str) -> float | None:
        """The sum of all series with these names, with or without a counter's ending."""
        values = list(self._values(names))
        return sum(values) if values else None

    def mean(self, name: str) -> float | None:
        values = list(self._values((name,)))
        return sum(values) / len(values) if values else None

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of the first series of this name; empty if there is none."""
        return next((labels for labels, _ in self.samples.get(name, ())), {})

    def _values(self, names: Iterable[str]) -> Iterable[float]:
        for name in names:
            for key in (name, f"{name}_total"):
                yield from (value for _, value in self.samples.get(key, ()))


# -- what a server is ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself. `names`: by which names its model may be known: the name in its
    API, and the model's path. `sample_ids`: the ids of SAMPLE's tokens; None if it does not
    tell."""

    server: AttachedServer
    names: tuple[str, ...]
    sample_ids: tuple[int, ...] | None


_OWNERS: Mapping[str, ServerKind] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}


def identify(url: str, key_file: str = "", wanted: str = "") -> Identity:
    """Asks a server what it is. `wanted`: the model that counts if the server lists it; else its
    first one does. Blocks for some seconds at most. Raises ServerError."""
    asked = AttachedServer(url, "vllm", "", 0, 0, key_file=key_file)
    with httpx.Client(base_url=url, headers=headers(asked), timeout=CALL_TIMEOUT_S) as client:
        models = _get(client, MODELS)
        try:
            cards = models["data"]
            model = next((each for each in cards if each["id"] == wanted), cards[0])
            name, owner = str(model["id"]), str(model.get("owned_by", ""))
        except (KeyError, IndexError, TypeError):
            raise ServerError(f"it lists no model at {MODELS}") from None
        kind = _OWNERS.get(owner, "openai")
        server = replace(asked, kind=kind, model=name)
        match kind:
            case "openai":
                max_model_len = _number(model.get("max_model_len") or model.get("context_length"))
                return Identity(replace(server, max_model_len=max_model_len), (name,), None)
            case "vllm":
                return _identify_vllm(client, server, model)
            case "sglang":
                return _identify_sglang(client, server, model)
            case "llamacpp":
                return _identify_llamacpp(client, server)


def _identify_vllm(client: httpx.Client, server: AttachedServer, model: Any) -> Identity:
    info = _metrics(client).labels("vllm:cache_config_info")
    num_blocks, size = _number(info.get("num_gpu_blocks")), _number(info.get("block_size"))
    found = replace(
        server,
        max_model_len=_number(model.get("max_model_len")),
        capacity_tokens=max(0, num_blocks - 1) * size,
        block_size=size or DEFAULT_BLOCK_SIZE,
    )
    asked = {"model": server.model, "prompt": SAMPLE, "add_special_tokens": False}
    names = (server.model, str(model.get("root") or ""))
    return Identity(found, names, _tokens(client, asked))


def _identify_sglang(client: httpx.Client, server: AttachedServer, model: Any) -> Identity:
    about, info = _get(client, "/get_model_info"), _get(client, "/get_server_info")
    found = replace(
        server,
        max_model_len=_number(model.get("max_model_len") or info.get("context_length")),
        capacity_tokens=_number(info.get("max_total_num_tokens")),
        max_num_running=_number(info.get("max_running_requests")),
    )
    asked = {"model": server.model, "prompt": SAMPLE, "add_special_tokens": False}
    names = (server.model, str(about.get("model_path") or ""))
    return Identity(found, names, _tokens(client, asked))


def _identify_llamacpp(client: httpx.Client, server: AttachedServer) -> Identity:
    props = _get(client, "/props")
    defaults, num_slots = props.get("default_generation_settings", {}), props.get("total_slots", 1)
    per_slot = _number(defaults.get("n_ctx"))
    found = replace(
        server,
        max_model_len=per_slot,
        capacity_tokens=per_slot * _number(num_slots),
        max_num_running=_number(num_slots),
    )
    names = (server.model, str(props.get("model_path") or ""))
    return Identity(found, names, _tokens(client, {"content": SAMPLE, "add_special": False}))


def _get(client: httpx.Client, path: str) -> Any:
    return _answer(path, lambda: client.get(path))


def _tokens(client: httpx.Client, asked: Mapping[str, Any]) -> tuple[int, ...] | None:
    try:
        told = _answer("/tokenize", lambda: client.post("/tokenize", json=asked))
        return tuple(int(each) for each in told["tokens"])
    except (ServerError, KeyError, TypeError, ValueError):
        return None


def _metrics(client: httpx.Client) -> Metrics:
    try:
        answer = client.get(METRICS)
        return Metrics.of(answer.text) if answer.status_code == httpx.codes.OK else Metrics()
    except (httpx.HTTPError, ValueError):
        return Metrics()


def _answer(path: str, call: Any) -> Any:
    try:
        answer: httpx.Response = call()
    except httpx.HTTPError as error:
        raise ServerError(f"{path} cannot be asked: {words(error)}") from error
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ServerError(f"{path} wants an API key, or another one ({answer.status_code})")
    if answer.status_code != httpx.codes.OK:
        raise ServerError(f"{path} answers {answer.status_code}")
    try:
        return answer.json()
    except ValueError:
        raise ServerError(f"{path} does not answer in JSON") from None


def words(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _number(told: object) -> int:
    """A whole number that a server tells in any form; 0 if it tells none."""
    try:
        return max(0, int(str(told)))
    except ValueError:
        return 0
