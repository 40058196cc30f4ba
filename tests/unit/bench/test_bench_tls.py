"""`bench` over https: it believes the certificate of its own cluster, and no other."""

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.errors import UnreachableError
from controller.api.state import run_state
from llumctl.lab import bench_run
from llumctl.lab.bench_client import Connection, Endpoint, ExchangeError
from llumctl.lab.bench_run import Target
from tests.certificates import make
from tests.unit.bench.bench_server import MODEL, FakeServer
from tests.unit.cli_support import remember
from tests.unit.fake_controller import FakeController


def server_with(certificate: Path, key: Path) -> FakeServer:
    server = FakeServer(context=64)
    server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.tls.load_cert_chain(certificate, key)
    return server


async def asked(url: str, certificate: Path | None) -> Target:
    """The target of a cluster whose endpoint has this URL and this certificate."""
    with FakeController() as control:
        endpoint = {"endpoint_url": url, "endpoint_certificate": str(certificate or "")}
        run_state.save(replace(remember(control.url), **endpoint))
        return await asyncio.to_thread(bench_run.target_of_cluster, "default", "", None)


async def test_the_cluster_s_certificate_is_believed_whatever_its_name(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "chat.example")
    async with server_with(certificate, key).serving() as server:
        target = await asked(server.url, certificate)
        assert (target.model, target.max_model_len) == (MODEL, 64)
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
    async with server_with(authority, key).serving() as server:
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await asked(server.url, own if known else None)
        assert "SSL_CERT_FILE" in caught.value.hint
        with pytest.raises(ExchangeError) as refused:
            await Connection.open(Endpoint(server.url, certificate=str(own) if known else ""))
        assert refused.value.kind == "cannot-connect"
