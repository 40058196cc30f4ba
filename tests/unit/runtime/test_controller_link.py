"""A process says Hello until it is welcomed, then keeps on."""

import asyncio

from controller.runtime.controller_link import HELLO_INTERVAL_S, ControllerLink
from controller.runtime.messages.members import Hello, Welcome
from tests.unit.runtime.fakes import FakeNetwork, virtual_time


def member(network: FakeNetwork) -> ControllerLink:
    mailbox = network.mailbox("mem://i-0")
    return ControllerLink("instance", "i-0", mailbox, "mem://controller", "n", lambda: 3)


@virtual_time
async def test_it_says_hello_every_second_and_names_what_it_was_given(network: FakeNetwork) -> None:
    controller, own = network.peer("mem://controller"), member(network)
    hellos = asyncio.create_task(own.keep_saying_hello())
    first = await controller.receive(Hello)
    assert (first.incarnation, first.phase, first.num_live_reqs) == (0, "starting", 3)
    assert (await controller.receive(Hello)).incarnation == 0
    assert not own.welcomed(Welcome(first.nonce, 4))
    before_s = asyncio.get_running_loop().time()
    assert (await controller.receive(Hello)).incarnation == 4
    assert asyncio.get_running_loop().time() - before_s <= HELLO_INTERVAL_S
    hellos.cancel()


@virtual_time
async def test_it_is_fenced_only_by_a_welcome_of_its_own(network: FakeNetwork) -> None:
    controller, own = network.peer("mem://controller"), member(network)
    own.say_hello()
    nonce = (await controller.receive(Hello)).nonce
    assert not own.welcomed(Welcome("another", 9, fenced=True))
    assert own.incarnation == 0
    assert own.welcomed(Welcome(nonce, 2, fenced=True))
    assert own.incarnation == 2
    assert not own.welcomed(Welcome(nonce, 2, fenced=True)), "said again, and done already"
