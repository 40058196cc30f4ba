"""Checks a server before it is attached: it must have the cluster's model, and its tokens must mean
the same as the cluster's."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from controller.adapters.attached.servers import SAMPLE, Identity, ServerError, identify
from controller.api.errors import UsageError
from controller.core.fleet.attached import AttachedServer, ServerAsked
from controller.main.checks.model_weights import cached_config

AGAIN = "llumctl attach URL"


def check_server(
    asked: ServerAsked,
    max_model_len: int,
    model_names: Collection[str],
    engine_args: Mapping[str, Any],
) -> AttachedServer:
    """Asks the server what it is. `max_model_len`: how many tokens a request of the cluster may
    have. `model_names`: by which names clients call the cluster's model. If requests are forwarded
    to the server, neither its tokenizer nor its length need to be the cluster's. Raises
    UsageError."""
    url = _plain(asked.url)
    if asked.key_file:
        check_key_file(asked.key_file)
    try:
        found = identify(url, asked.key_file, next(iter(model_names), ""))
    except ServerError as error:
        raise UsageError(f"{url}: {error}", f"curl {url}/v1/models") from error
    server = found.server
    if not asked.other_model:
        _check_model(found, [*model_names, str(engine_args.get("model", ""))])
    if asked.forwards:
        capacity_tokens = _capacity(asked, server)
        longest = min(server.max_model_len or capacity_tokens, capacity_tokens)
        return replace(server, max_model_len=longest, capacity_tokens=capacity_tokens)
    if server.kind == "openai":
        raise UsageError(
            f"{url}: it calls itself neither vllm, sglang nor llamacpp, so it cannot be sent ids"
            " of tokens",
            "docs/attached-servers.md, Models on other servers only",
        )
    own = _own_sample(engine_args)
    if found.sample_ids is not None and own is not None and found.sample_ids != own:
        raise UsageError(
            f"{url}: its tokens have other ids than the cluster's, so it misreads prompts",
            "attach a server with the same tokenizer",
        )
    if server.max_model_len < max_model_len:
        raise UsageError(
            f"{url}: it takes {server.max_model_len} tokens a request, and requests of this cluster"
            f" may have {max_model_len}",
            "start the server with a longer context      or      the cluster with a shorter one",
        )
    capacity_tokens = _capacity(asked, server)
    return replace(server, max_model_len=max_model_len, capacity_tokens=capacity_tokens)


def _capacity(asked: ServerAsked, server: AttachedServer) -> int:
    capacity_tokens = asked.capacity_tokens or server.capacity_tokens
    if capacity_tokens < server.block_size:
        raise UsageError(
            f"{server.url}: it does not tell how many tokens its KV cache holds",
            f"llumctl attach {server.url} --capacity TOKENS",
        )
    return capacity_tokens


def _plain(url: str) -> str:
    """The URL without a slash at the end. A URL with a name, a password or a query is refused: it
    would be shown in events and logs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"URL: {error}", "llumctl attach http://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UsageError("URL: it must begin with http:// or https:// and a host", AGAIN)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "URL: it must have no name, password or query", "llumctl attach URL --key-file FILE"
        )
    return url.rstrip("/").removesuffix("/v1")


def _check_model(found: Identity, names: Collection[str]) -> None:
    """A model is known by its name or by the last part of its path."""
    theirs = {PurePath(name).name for name in found.names if name}
    if not theirs & {PurePath(name).name for name in names if name}:
        raise UsageError(
            f"{found.server.url}: its model is {found.server.model}, and the cluster's is"
            f" {next(iter(names))}",
            f"llumctl attach {found.server.url} --other-model      if the weights are the same",
        )


def _own_sample(engine_args: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids of SAMPLE by the cluster's tokenizer; None if its file is not on this machine."""
    named = str(engine_args.get("tokenizer") or engine_args.get("model"))
    folder = Path(named)
    if not folder.is_dir():
        config = cached_config({**engine_args, "model": named})
        if config is None:
            return None
        folder = config.parent
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    return tuple(Tokenizer.from_file(str(path)).encode(SAMPLE, add_special_tokens=False).ids)


def check_key_file(path: str) -> None:
    """Raises UsageError if others than its owner may read the file."""
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", f"ls -l {path}") from error
    if mode & 0o077:
        raise UsageError(f"{path}: others may read it", f"chmod 600 {path}")
