"""What the load goes to: an endpoint, its model, and what the cluster behind it says."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from controller.api.client import ControlClient
from controller.api.errors import LlumctlError, RefusedError, UnreachableError, UsageError
from controller.api.settings import key_file
from controller.api.wire.status import ClusterStatus, InstanceStatus
from llumctl import connect
from llumctl.bench import levels
from llumctl.bench.connection import Endpoint
from llumctl.bench.levels import Level
from llumctl.config import config_file

ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Target:
    """`max_model_len` in tokens, None if the endpoint does not say. `cluster` and `control` are
    None where only a URL is known."""

    endpoint: Endpoint
    model: str
    max_model_len: int | None
    cluster: ClusterStatus | None = None
    control: ControlClient | None = None

    @property
    def is_emulated(self) -> bool:
        return self.cluster is not None and self.cluster.engine == "emulated"

    @property
    def levels(self) -> Sequence[Level]:
        """The cluster's priority table; llumctl's own where none is known."""
        if self.cluster is not None and self.cluster.levels:
            return [Level(item.name, -item.rank) for item in self.cluster.levels]
        return [levels.DEFAULT, Level("high", -1)]


def of_cluster(cluster: str, api_key: str, model: str | None) -> Target:
    """Raises UnreachableError if no such cluster runs, or it does not answer."""
    state = connect.running(cluster)
    control = ControlClient(state.control_url, state.control_token, ASK_TIMEOUT_S)
    status = control.status()
    endpoint = Endpoint(state.endpoint_url, api_key, state.endpoint_certificate)
    name, context = _ask_model(endpoint, model)
    return Target(endpoint, name, context, status, control)


def of_url(url: str, api_key: str, model: str | None) -> Target:
    """Raises UsageError, UnreachableError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"--url: {url[:80]!r} is not of the form http://HOST:PORT",
            "llumctl bench --url http://127.0.0.1:8000",
        )
    endpoint = Endpoint(url, api_key)
    name, context = _ask_model(endpoint, model)
    return Target(endpoint, name, context)


def read_key(path: Path) -> str:
    """The key in the first line with text, of a private file. Raises UsageError."""
    first = config_file.read_secret(path, "--api-key-file").splitlines()[0]
    key = key_file.parse_line(first).key
    if not key.isprintable() or not key.isascii():
        raise UsageError(f"--api-key-file: {path} holds no key", f"head -c 100 {path}")
    return key


def num_evictions(before: Iterable[InstanceStatus], after: Iterable[InstanceStatus]) -> int | None:
    """Evictions in between; an instance that restarted counts from 0. None if none is known."""
    counts = {
        (item.id, item.incarnation): item.num_evictions
        for item in before
        if item.num_evictions is not None
    }
    differences = [
        item.num_evictions - counts.get((item.id, item.incarnation), 0)
        for item in after
        if item.num_evictions is not None
    ]
    return sum(differences) if differences else None


def _ask_model(endpoint: Endpoint, wanted: str | None) -> tuple[str, int | None]:
    """Name and context of the first model, or of the wanted one."""
    url = endpoint.url("models")
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    try:
        verify = endpoint.tls() or False
        with httpx.Client(trust_env=False, timeout=ASK_TIMEOUT_S, verify=verify) as client:
            response = client.get(url, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        reason = str(error) or type(error).__name__
        untrusted = "CERTIFICATE_VERIFY_FAILED" in reason
        raise UnreachableError(
            f"{url} cannot be reached: {reason}",
            "SSL_CERT_FILE=AUTHORITIES llumctl bench ..." if untrusted else "llumctl status",
        ) from error
    if response.status_code in (401, 403):
        raise RefusedError(
            f"{url} wants another API key ({response.status_code})",
            "llumctl bench --api-key-file FILE",
        )
    try:
        models = {item["id"]: item.get("max_model_len") for item in response.json()["data"]}
        response.raise_for_status()
    except (ValueError, KeyError, TypeError, AttributeError, httpx.HTTPError) as error:
        raise LlumctlError(
            f"{url} answered {response.status_code} and no list of models", f"curl -i {url}"
        ) from error
    if wanted is not None and wanted not in models:
        raise UsageError(
            f"--model: {url} serves no {wanted[:60]!r}; it serves {', '.join(models) or 'none'}",
            f"llumctl bench --model {next(iter(models), 'NAME')}",
        )
    if not models:
        raise LlumctlError(f"{url} lists no model", "llumctl status")
    name = wanted or next(iter(models))
    return name, models[name] if isinstance(models[name], int) else None
