"""Asks each node of a Ray: `python -P -m controller.main.doctor.gather ADDRESS QUESTIONS`.

It is a separate process because Ray's client library ends its process if it gives up. The last line
of its output is RayFacts as JSON. Its actors belong to it, and end with it. Questions and facts are
plain values."""

import socket
import sys
import time
from typing import Any

from pydantic import BaseModel, ConfigDict

from controller.api.errors import one_line
from controller.main.doctor import probe

NODE_TIMEOUT_S = 30.0
"""How long a node's answer may take. Ray first starts a process on the node, which takes 4 s, or 12
s on a busy machine."""
CLOCK_TIMEOUT_S = 5.0
NUM_CLOCK_READINGS = 5
MAX_REASON_CHARS = 300
NO_NODE = "this machine is no node of it"
NO_TOKEN = "it asks for its token, and llumctl has none, or another one"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Gpu(Frozen):
    name: str
    memory_mib: int
    compute_capability: str


class Versions(Frozen):
    python: str = ""
    ray: str = ""
    llumctl: str = ""
    """The version, and a fingerprint of the sources, because different checkouts have the same
    version."""
    vllm: str = ""
    torch: str = ""


class Questions(Frozen):
    """What a node is asked about, in addition to the facts about itself."""

    model_folders: tuple[str, ...] = ()
    """The folders that instances read."""
    hub_models: tuple[str, ...] = ()
    """The ids of the models that are on the Hugging Face hub."""
    log_dir: str = ""


class NodeFacts(Frozen):
    """One node. If it has a `problem`, it did not answer, and only its address is known."""

    node_id: str
    address: str
    """The address by which Ray knows the node. With `host = "auto"` the processes on the node use
    this address."""
    problem: str = ""
    versions: Versions = Versions()
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that the node's driver shows."""
    num_ray_gpus: int = 0
    """How many GPUs of the node Ray assigns to actors."""
    model_problem: str = ""
    uncached_models: tuple[str, ...] = ()
    """The models of the hub that are not in the node's cache."""
    log_dir_problem: str = ""
    shm_free_bytes: int = 0
    available_bytes: int = 0
    max_open_files: int = 0
    clock_ahead_s: float = 0.0
    """By how much the node's clock is ahead of the clock of the machine that asked. It is 0 if the
    time between question and answer could explain the difference."""
    unreachable: dict[str, str] = {}
    """The addresses of other nodes to which this node could not connect, and why."""


class RayFacts(Frozen):
    """A Ray as seen from this machine. If it has a `problem`, it could not be joined."""

    problem: str = ""
    nodes: tuple[NodeFacts, ...] = ()
    num_free_gpus: int = 0


def main(address: str, questions_json: str) -> None:
    import ray

    questions = Questions.model_validate_json(questions_json)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        is_refused = "AuthenticationError" in str(error.__cause__)
        problem = NO_TOKEN if is_refused else one_line(error, MAX_REASON_CHARS)
        _tell(RayFacts(problem=problem))
        return
    try:
        here = ray.util.get_node_ip_address()
        _tell(_gather(questions) if is_mine(here) else RayFacts(problem=NO_NODE))
    finally:
        ray.shutdown()


def _tell(facts: RayFacts) -> None:
    sys.stdout.write(f"{facts.model_dump_json()}\n")


def _gather(questions: Questions) -> RayFacts:
    import ray
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cloudpickle.register_pickle_by_value(probe)
    listed = sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: n["NodeManagerAddress"])
    free_gpus = int(ray.available_resources().get("GPU", 0))
    remote = ray.remote(probe.NodeProbe)
    probes = {}
    for node in listed:
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = remote.options(num_cpus=0, scheduling_strategy=place)
        probes[node["NodeID"]] = options.remote(node["NodeManagerAddress"])
    try:
        asked = {i: p.facts.remote(*questions.model_dump().values()) for i, p in probes.items()}
        answers, problems = _answers(asked, NODE_TIMEOUT_S)
        doors = {
            node["NodeID"]: (str(node["NodeManagerAddress"]), int(answers[node["NodeID"]]["port"]))
            for node in listed
            if node["NodeID"] in answers
        }
        asked = {
            i: probes[i].reach.remote([door for other, door in doors.items() if other != i])
            for i in doors
        }
        reached, failed = _answers(asked, NODE_TIMEOUT_S)
        nodes = []
        for node in listed:
            node_id = node["NodeID"]
            found: dict[str, Any] = {"node_id": node_id, "address": node["NodeManagerAddress"]}
            problem = problems.get(node_id) or failed.get(node_id, "")
            if not problem:
                found |= {k: v for k, v in answers[node_id].items() if k != "port"}
                found["clock_ahead_s"] = _clock_ahead_s(probes[node_id])
                found["unreachable"] = reached[node_id]
                found["num_ray_gpus"] = int(node["Resources"].get("GPU", 0))
            nodes.append(NodeFacts(**found, problem=problem))
        return RayFacts(nodes=tuple(nodes), num_free_gpus=free_gpus)
    finally:
        for each in probes.values():
            ray.kill(each)


def _answers(asked: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], dict[str, str]]:
    """The answers of the nodes; and for each node that did not answer, the reason. All nodes have
    the same time to answer."""
    import ray

    answers, problems = {}, {}
    refs = list(asked.values())
    done = set(ray.wait(refs, num_returns=len(refs), timeout=timeout_s)[0]) if refs else set()
    for node_id, ref in asked.items():
        if ref not in done:
            problems[node_id] = f"no answer in {timeout_s:.0f} s"
            continue
        try:
            answers[node_id] = ray.get(ref)
        except Exception as error:
            problems[node_id] = one_line(error, MAX_REASON_CHARS)
    return answers, problems


def _clock_ahead_s(node: Any) -> float:
    """By how much the node's clock is ahead, according to the quickest of several readings. It is 0
    if the time of that reading could explain the difference, or if the node does not answer any
    more."""
    import ray

    best = (float("inf"), 0.0)
    for _ in range(NUM_CLOCK_READINGS):
        began_s = time.time()
        try:
            there_s = ray.get(node.clock.remote(), timeout=CLOCK_TIMEOUT_S)
        except Exception:
            return 0.0
        took_s = time.time() - began_s
        best = min(best, (took_s, there_s - began_s - took_s / 2))
    took_s, ahead_s = best
    return ahead_s if abs(ahead_s) > took_s / 2 else 0.0


def is_mine(address: str) -> bool:
    """Whether this machine has the address. This is checked because Ray is joined by a socket file,
    which may be on a file system that this machine shares with a node."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as own:
            own.bind((address, 0))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:3])
