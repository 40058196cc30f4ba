"""`bench` over https: it believes the certificate of its own cluster, and no other."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.errors import UnreachableError
from controller.api.state import run_state
from llumctl.lab import bench_client, bench_run
from llumctl.lab.bench_client import Connection, Endpoint, ExchangeError
from llumctl.lab.bench_run import Target
from tests.certificates import make
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController

MODELS = json.dumps({"data": [{"id": "m", "max_model_len": 64}]}).encode()


@asynccontextmanager
async def serving(certificate: Path, key: Path) -> AsyncIterator[str]:
    """Lists a model to whomever asks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(MODELS)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + MODELS)
        await writer.drain()
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def asked(url: str, certificate: Path | None) -> Target:
    """The target of a cluster whose endpoint has this URL and this certificate."""
    with FakeController() as control:
        endpoint = {"endpoint_url": url, "endpoint_certificate": str(certificate or "")}
        run_state.save(replace(remember(control.url), **endpoint))
        return await asyncio.to_thread(bench_run.target_of_cluster, "default", "", None)


async def test_the_cluster_s_certificate_is_believed_whatever_its_name(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "chat.example")
    async with serving(certificate, key) as url:
        target = await asked(url, certificate)
        assert (target.model, target.max_model_len) == ("m", 64)
        connection = await Connection.open(target.endpoint)
        assert connection.is_open
        connection.close()


@pytest.mark.parametrize("known", [True, False])
async def test_another_certificate_is_not(tmp_path: Path, known: bool) -> None:
    """Of a chain only the first certificate counts: its authority signs others' too."""
    own, _ = make(tmp_path, "own.example")
    (tmp_path / "b").mkdir()
    authority, key = make(tmp_path / "b", "authority.example")
    own.write_text(own.read_text() + authority.read_text())
    async with serving(authority, key) as url:
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await asked(url, own if known else None)
        assert "SSL_CERT_FILE" in caught.value.hint
        with pytest.raises(ExchangeError) as refused:
            await Connection.open(Endpoint(url, certificate=str(own) if known else ""))
        assert refused.value.kind == "cannot-connect"


def test_plain_http_loads_no_certificates() -> None:
    assert bench_client.tls_context("http://127.0.0.1:1") is None
