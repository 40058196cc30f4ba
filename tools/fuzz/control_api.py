"""Fuzzes the control API by its own description, with schemathesis.

Starts a cluster of emulated instances, gives it requests that live as long as the run, so that
orders have something to be about, and lets schemathesis send what the description allows and what
it does not. Exit code 1: it found something.

What depends on more than a schema says (a level that the cluster has, a position of its event log)
is refused with 400; so a refusal of valid data is no finding. Left out are the calls that stream
for ever, and what stops the cluster. `control_hooks.py` keeps a few others from ending the run.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from controller.api.interrupts import stops_interrupt
from tools.client_stream import Stream
from tools.cluster import Cluster
from tools.fuzz.__main__ import own_cluster

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("/v1/stop", "/v1/traffic", "/v1/watch")
NOT_CHECKED = ("positive_data_acceptance",)
NUM_STREAMS = 4
# The statuses are schemathesis's own, and 413 for a body of more than 64 KiB.
CONFIG = """\
headers = { Authorization = "Bearer ${FUZZED_TOKEN}" }

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""
# A token takes half a second, so that the streams outlive the run.
UP = ("--engine", "emulated", "-n", "3", "--set", "emulated.speed=0.05")
MAX_TOKENS = 2000
# An answer waits for a silent frontend, and a move for its turn.
REQUEST_TIMEOUT_S = 70


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="llumctl-fuzz-") as home:
        cluster = own_cluster(Path(home), f"fuzz-{os.getpid()}", UP)
        with stops_interrupt(), cluster.running():
            for number in range(NUM_STREAMS):
                body = {"prompt": [300 + number] * 64, "max_tokens": MAX_TOKENS, "ignore_eos": True}
                Stream(cluster, "/v1/completions", body, f"fuzz-{number}-")
            code = _run(cluster, Path(home), options)
            with cluster.control() as client:
                status = client.status()
    told = f"afterwards: {status.state}, {len(status.instances)} instances, seed {options.seed}"
    Console().print(told)
    return code


def _run(cluster: Cluster, home: Path, options: argparse.Namespace) -> int:
    state = json.loads((cluster.state_dir / "run.json").read_text())
    url, token = state["control_url"], state["control_token"]
    config = home / "schemathesis.toml"
    # The token is no argument, as other users may read those.
    config.write_text(CONFIG)
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        *("--config-file", str(config), "--no-color", "run", f"{url}/openapi.json"),
        *("--phases", "examples,coverage,fuzzing", "--continue-on-failure"),
        *("--max-time", f"{options.seconds:g}", "--seed", str(options.seed)),
        *("--request-timeout", str(REQUEST_TIMEOUT_S)),
        *(word for path in LEFT_OUT for word in ("--exclude-path", path)),
        *("--exclude-checks", ",".join(NOT_CHECKED)),
    ]
    told = {
        "FUZZED_URL": url,
        "FUZZED_TOKEN": token,
        "SCHEMATHESIS_HOOKS": "tools.fuzz.control_hooks",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(command, env=os.environ | told, cwd=home, check=False).returncode


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz.control_api",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
