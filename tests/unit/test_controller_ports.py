"""The controller's ports are held from before its start until the cluster ends."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.adapters.listener import Keeper
from controller.adapters.zmq.zmq_mailbox import ClusterKey, ZmqMailbox, new_secret_key
from controller.api.errors import LlumctlError
from controller.api.settings.settings import ControlTable, Settings
from controller.main.checks import preflight
from controller.main.machine import controller_ports
from controller.main.plan import ClusterPlan
from tests.unit.test_security import plan

HOST = "127.0.0.1"
KEY = ClusterKey(new_secret_key())


Held = tuple[ClusterPlan, list[Keeper]]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """A plan with the ports that the head keeps for it."""
    control = controller_ports.bound(HOST, 0, again=True)
    inbox = controller_ports.bound(HOST, 0, again=False)
    settings = Settings(control=ControlTable(port=control.getsockname()[1]))
    made = plan(tmp_path).model_copy(
        update={"settings": settings, "members_port": inbox.getsockname()[1]}
    )
    keepers = controller_ports.keep(made, control, [inbox])
    yield made, keepers
    head_dies(keepers)


def taken(port: int) -> bool:
    """Whether the port is taken for another program that binds without options, as Ray's servers
    do."""
    with socket.socket() as other:
        try:
            other.bind((HOST, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
        return False


def test_they_are_nobody_else_s_at_any_time(held: Held) -> None:
    made, _ = held
    ports = made.settings.control.port, made.members_port
    assert [taken(port) for port in ports] == [True, True], "before the controller is there"
    address = HOST, ports[0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    with controller_ports.control_socket(made) as found, controller_ports.inbox_socket(made, HOST):
        assert [taken(port) for port in ports] == [True, True]
        assert found.getsockname() == address
        socket.create_connection(address, timeout=5).close()
    assert [taken(port) for port in ports] == [True, True], "it has died"


def head_dies(keepers: list[Keeper]) -> None:
    for keeper in keepers:
        keeper.close()
    keepers.clear()


def test_without_a_head_they_are_bound_again(held: Held) -> None:
    """Even if the last connection of a dead controller is still known to the kernel: first the head
    died, and then the controller, which closed it."""
    made, keepers = held
    with controller_ports.inbox_socket(made, HOST) as inbox:
        inbox.setblocking(True)
        member = socket.create_connection(inbox.getsockname(), timeout=5)
        inbox.accept()[0].close()
        head_dies(keepers)
    with member:
        assert member.recv(1) == b""
    with controller_ports.inbox_socket(made, HOST) as found:
        assert found.getsockname()[1] == made.members_port
    with controller_ports.control_socket(made) as found:
        assert found.getsockname()[1] == made.settings.control.port


async def test_members_reach_the_next_controller_at_the_same_address(held: Held) -> None:
    made, _ = held
    member = ZmqMailbox(HOST, key=KEY)
    for _turn in range(2):
        inbox = controller_ports.inbox_socket(made, HOST)
        controller = ZmqMailbox(HOST, key=KEY, listening=inbox)
        assert controller.address == f"tcp://{HOST}:{made.members_port}"
        got = asyncio.Event()
        controller.start(lambda _head, _payload, got=got: got.set(), lambda _: None)
        async with asyncio.timeout(20):
            while not got.is_set():
                member.send(controller.address, b"hello", droppable=True)
                await asyncio.sleep(0.01)
        await controller.close()
    await member.close()


def test_the_inbox_has_a_port_that_nobody_gets_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with controller_ports.bound_apart(HOST) as one, controller_ports.bound_apart(HOST) as other:
        ports = {each.getsockname()[1] for each in (one, other)}
        assert len(ports) == 2
        assert all(20_000 <= port < lowest for port in ports)
        port = min(ports)
        monkeypatch.setattr(controller_ports, "APART", range(port, port + 1))
        monkeypatch.setattr(controller_ports, "MAX_TRIES", 1)
        with controller_ports.bound_apart(HOST) as found:
            assert found.getsockname()[1] not in (0, port), "any port, as all of those are in use"


def test_a_control_port_in_use_is_told_before_anything_starts() -> None:
    with socket.create_server((HOST, 0)) as other:
        table = ControlTable(port=other.getsockname()[1])
        with pytest.raises(LlumctlError, match="the control API cannot listen on") as caught:
            preflight.hold_control(table)
    assert caught.value.hint.startswith("llumctl up --control-port ")
