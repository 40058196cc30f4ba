"""`bench` over https: it believes the certificate of its own cluster, and no other."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controller.api.errors import UnreachableError
from llumctl.lab import bench_client, bench_run
from llumctl.lab.bench_client import Connection, Endpoint, ExchangeError
from tests.certificates import make

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


def ask(endpoint: Endpoint) -> tuple[str, int | None]:
    return bench_run._ask_model(endpoint, None)


async def test_the_cluster_s_certificate_is_believed_whatever_its_name(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "chat.example")
    async with serving(certificate, key) as url:
        endpoint = Endpoint(url, certificate=str(certificate))
        assert await asyncio.to_thread(ask, endpoint) == ("m", 64)
        connection = await Connection.open(endpoint)
        assert connection.is_open
        connection.close()


async def test_another_certificate_is_not(tmp_path: Path) -> None:
    own, _ = make(tmp_path, "chat.example")
    (tmp_path / "b").mkdir()
    other, key = make(tmp_path / "b", "chat.example")
    async with serving(other, key) as url:
        for certificate in (str(own), ""):
            endpoint = Endpoint(url, certificate=certificate)
            with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                await asyncio.to_thread(ask, endpoint)
            assert "SSL_CERT_FILE" in caught.value.hint
            with pytest.raises(ExchangeError) as refused:
                await Connection.open(endpoint)
            assert refused.value.kind == "cannot-connect"


async def test_only_the_first_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    """What an authority signs besides is another's."""
    own, _ = make(tmp_path, "own.example")
    authority, key = make(tmp_path, "authority.example")
    own.write_text(own.read_text() + authority.read_text())
    async with serving(authority, key) as url:
        with pytest.raises(UnreachableError):
            await asyncio.to_thread(ask, Endpoint(url, certificate=str(own)))


def test_plain_http_loads_no_certificates() -> None:
    assert bench_client.tls_context("http://127.0.0.1:1") is None
