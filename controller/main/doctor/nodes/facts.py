"""What is known of each node of a Ray, as plain values."""

from pydantic import BaseModel, ConfigDict


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
    """The version, and a fingerprint of the sources: checkouts share a version."""
    vllm: str = ""
    torch: str = ""


class Questions(Frozen):
    """What a node is asked about, beside itself."""

    model_folder: str = ""
    """A folder that each instance reads; empty: there is none."""
    hub_model: str = ""
    """A model's id on the Hugging Face hub; empty: none is wanted."""
    log_dir: str = ""


class NodeFacts(Frozen):
    """One node. With a `problem` it did not answer, and nothing else is known but its address."""

    node_id: str
    address: str
    """By which Ray knows the node, and by which its processes are reached with `host = "auto"`."""
    problem: str = ""
    versions: Versions = Versions()
    gpus: tuple[Gpu, ...] = ()
    """Those that the driver shows there."""
    num_ray_gpus: int = 0
    """Those that Ray hands out there."""
    model_problem: str = ""
    model_is_cached: bool = True
    """Whether the hub's model is in the node's cache."""
    log_dir_problem: str = ""
    shm_free_bytes: int = 0
    available_bytes: int = 0
    max_open_files: int = 0
    clock_ahead_s: float = 0.0
    """Its clock less that of the machine that asked; 0 where the way there could explain it."""
    unreachable: dict[str, str] = {}
    """Addresses of other nodes to which it could not connect, and why."""


class RayFacts(Frozen):
    """A Ray as seen from this machine. With a `problem` it could not be joined."""

    problem: str = ""
    nodes: tuple[NodeFacts, ...] = ()
    num_free_gpus: int = 0
