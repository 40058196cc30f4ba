"""A real controller, a frontend and real llumlets with engine threads, on the fake network."""

import asyncio
from collections.abc import Callable

from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.settings import ReschedulingConfig
from controller.runtime.controller.cluster import ControllerProcess
from controller.runtime.controller.operations.operated_cluster import SpecKeeper
from controller.runtime.controller.roster import LiveConfig
from tests.unit.runtime.fakes import FakeLauncher, FakeNetwork, until
from tests.unit.runtime.members import CONTROLLER, Frontend, Instance


class ControlledCluster:
    """Of two instances, which the test starts."""

    def __init__(self, network: FakeNetwork, rescheduling: ReschedulingConfig) -> None:
        self.network = network
        self.controller = ControllerProcess(
            network.mailbox(CONTROLLER),
            FakeLauncher(),
            LiveConfig(rescheduling=rescheduling),
            SpecKeeper(ClusterSpec.first(2)),
        )
        self.controller.start(num_frontends=1)
        self.running = asyncio.create_task(self.controller.run())
        self.frontend = Frontend(network)
        self.instances: dict[str, Instance] = {}

    def join(self, instance_id: str) -> Instance:
        self.instances[instance_id] = Instance(self.network, instance_id)
        return self.instances[instance_id]

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition)

    async def end(self) -> None:
        for instance in self.instances.values():
            await instance.end()
        await self.frontend.router.close()
        self.running.cancel()
