"""Attached servers, which somebody else started, and which take part in the cluster as instances
that cannot move requests. What the spec keeps of each one, and which requests can be carried over
to such a server.

A request of a model that the cluster has instances of is carried over as the ids of its prompt's
tokens, with the few parameters that mean the same to every kind of server. Anything else would be
lost without notice, so such a request stays on the cluster's own instances. A model without
instances of the cluster's own has its requests forwarded as they came.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

ServerKind = Literal["vllm", "sglang", "llamacpp", "openai"]
"""`openai`: any other server with OpenAI's API. It only takes requests that are forwarded."""
SERVER_REFUSED = "the attached server refuses the request: "
"""How the reason begins with which a server's refusal ends a request."""


@dataclass(frozen=True, slots=True)
class AttachedServer:
    """A server as it was when it was attached.

    `url`: without a slash at the end. `model`: the model's name in the server's own API.
    `max_model_len`: the longest request, in tokens, that it may get. `capacity_tokens`: how many
    tokens its KV cache holds. `max_num_running`: how many requests it runs at a time; 0: it does
    not say. `block_size`: in how many tokens its memory is counted here. `key_file`: the file with
    its API key, next to the controller; empty: it wants no key."""

    url: str
    kind: ServerKind
    model: str
    max_model_len: int
    capacity_tokens: int
    max_num_running: int = 0
    block_size: int = 16
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class ServerAsked:
    """What an operator says of a server that is to be attached. `capacity_tokens`: 0: the server is
    asked. `other_model`: the server may have another model than the cluster. `forwards`: whether
    requests are forwarded to it as they came."""

    url: str
    key_file: str = ""
    capacity_tokens: int = 0
    other_model: bool = False
    forwards: bool = False


CARRIED = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop_token_ids", "ignore_eos"}
)
"""The parameters that are carried over."""
OURS = frozenset(
    {
        *("_all_stop_token_ids", "_eos_token_id", "detokenize", "include_stop_str_in_output", "n"),
        *("output_kind", "output_text_buffer_length", "skip_clone", "skip_special_tokens", "stop"),
        *("skip_reading_prefix_cache", "spaces_between_special_tokens", "stream_interval"),
        "flat_logprobs",
    }
)
"""The parameters that the frontend and the instance's process apply themselves, or that do not
change the tokens."""
NEUTRAL: Mapping[str, object] = {"repetition_penalty": 1.0}
"""The values of other parameters that change nothing, besides None, 0, False and the empty ones."""


def why_not_carried(params: Mapping[str, object]) -> str:
    """Why a request with these sampling parameters, by vLLM's names, cannot run on an attached
    server; empty if it can."""
    for name, value in params.items():
        if name in CARRIED or name in OURS or not value or NEUTRAL.get(name) == value:
            continue
        if name == "seed" and not params.get("temperature", 1.0):
            continue  # a greedy request draws nothing
        return f"an attached server cannot be given {name.lstrip('_')}"
    return ""
