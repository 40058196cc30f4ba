"""A real controller, a frontend and real llumlets with engine threads, on the fake network."""

import asyncio
from collections.abc import Callable

from controller.core.fleet.cluster_spec import ClusterSpec
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from tests.unit.runtime.fake_engine import tokens_of
from tests.unit.runtime.fakes import PATIENCE_S, FakeLauncher, FakeNetwork, until
from tests.unit.runtime.members import CONTROLLER, Frontend, Instance


class ControlledCluster:
    """Of two instances or more, which the test starts."""

    def __init__(
        self,
        network: FakeNetwork,
        config: LiveConfig,
        *,
        holds: bool = False,
        num_instances: int = 2,
    ) -> None:
        """`holds`: no engine steps until it is told to."""
        self.network = network
        self.holds = holds
        spec = SpecKeeper(ClusterSpec.first(num_instances))
        self.controller = ControllerProcess(
            network.mailbox(CONTROLLER), FakeLauncher(), config, spec
        )
        self.controller.start(num_frontends=1)
        self.running = asyncio.create_task(self.controller.run())
        self.frontend = Frontend(network)
        self.instances: dict[str, Instance] = {}

    def join(self, instance_id: str) -> Instance:
        instance = self.instances[instance_id] = Instance(self.network, instance_id)
        if self.holds:
            instance.engine.hold(blocks_thread=False)
        return instance

    def go_on(self, *instance_ids: str) -> None:
        for instance_id in instance_ids or self.instances:
            self.instances[instance_id].engine.go_on()

    async def run(self, prefix: str, num: int, max_tokens: int = 30) -> list[str]:
        """So many requests, sent at once."""
        ids = [f"{prefix}{n}" for n in range(num)]
        await asyncio.gather(*(self.frontend.submit(each, 8, max_tokens) for each in ids))
        return ids

    async def finished(self, *request_ids: str) -> None:
        """With all of their tokens, each."""
        frontend = self.frontend
        ended = (frontend.ended[request_id] for request_id in request_ids)
        ends = await asyncio.wait_for(asyncio.gather(*ended), PATIENCE_S)
        assert set(ends) <= {"finished"}
        for request_id in request_ids:
            tokens = tokens_of(request_id, frontend.max_tokens[request_id])
            assert frontend.tokens[request_id] == tokens

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)

    async def all_finish(self) -> None:
        """Those of a frontend that lives."""
        self.go_on()
        if self.frontend.address in self.network.mailboxes:
            await self.finished(*self.frontend.router.live_request_ids)

    async def end(self) -> None:
        for instance in self.instances.values():
            await instance.end()
        await self.frontend.router.close()
        self.running.cancel()
