"""The head process: starts Ray (or joins one) and the controller, then stays as Ray's owner.

Run by `up` as `python -P -m controller.main.head PLAN_FILE` in the state folder, never in a
user's folder: Ray puts its driver's working folder first in every worker's `sys.path`, and
a `controller.py` there would be imported instead of ours. It outlives `up`; SIGTERM from
`down` ends Ray. With somebody else's Ray it ends as soon as the controller is started.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from controller.adapters.ray.launcher import launch_actor
from controller.main import temp_folder
from controller.main.plan import ClusterPlan

# Nothing of ours goes through the object store; this is about Ray's minimum.
OBJECT_STORE_BYTES = 80_000_000


def main(plan_file: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    plan = ClusterPlan.model_validate_json(Path(plan_file).read_text(encoding="utf-8"))
    os.chdir(plan.state_dir)
    import ray

    table = plan.settings.cluster
    if table.ray_address:
        ray.init(address=table.ray_address, namespace=plan.namespace, log_to_driver=False)
    else:
        ray.init(
            namespace=plan.namespace,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(Path(plan.temp_dir) / temp_folder.RAY),
        )
    if stop.is_set():
        return
    launch_actor(
        plan.namespace,
        "controller",
        "controller.main.roles:controller",
        {"plan_json": plan.model_dump_json()},
        plan.log_dir,
        node_id=ray.get_runtime_context().get_node_id(),
    )
    logging.info("controller launched on Ray at %s", ray.get_runtime_context().gcs_address)
    if not table.ray_address:
        stop.wait()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
