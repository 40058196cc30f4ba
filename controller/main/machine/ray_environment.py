"""The environment of the processes that llumctl starts: of the head process, from which Ray and
every process of the cluster inherit it, and of processes that do not belong to a cluster
(`profile`, `doctor`, `down`)."""

import math
import os
import pwd
import secrets
from pathlib import Path

from controller.api.state import user_files

NONCE_VARIABLE = "LLUMCTL_NONCE"
"""This variable marks every process of a cluster, so that `down` finds processes that are left over
after an accident."""
TOKEN_FILE = "ray.token"
"""The token file's name in the cluster's state folder."""
MEMORY = {"MALLOC_ARENA_MAX": "2"}
"""The number of glibc's arenas. By default glibc has up to 8 arenas for each core, of 64 MiB each,
and keeps their free memory for the threads that once used them. After an hour of fuzzing an
instance had ten such arenas, full of holes."""
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "86400"}
"""How many seconds the processes of our own Ray continue without its head; Ray's default is a
minute. The head is needed only to start and end processes, and `status` says if it is gone."""
NOT_INHERITED = frozenset(
    {
        # With this variable, ray.init would join that Ray and not start one.
        "RAY_ADDRESS",
        # vLLM and Ray import modules that give warnings, and need asserts and docstrings.
        "PYTHONOPTIMIZE",
        "PYTHONWARNINGS",
        # With this variable, an interpreter does not end but waits for input.
        "PYTHONINSPECT",
        # With these variables, the cluster's metrics would mix with the user's own, and with
        # another cluster's.
        "PROMETHEUS_MULTIPROC_DIR",
        "prometheus_multiproc_dir",
    }
)
"""Variables of the user's shell that would change what our processes do."""
START_LIMITS_S = (
    "RAY_raylet_start_wait_time_s",
    "RAY_gcs_server_port_wait_time_s",
    "RAY_gcs_rpc_server_connect_timeout_s",
    "RAY_py_gcs_connect_timeout_s",
)
START_LIMITS_MS = ("RAY_agent_register_timeout_ms",)
START_ATTEMPTS = ("RAY_raylet_client_num_connect_attempts",)
"""Ray's limits for how long its parts wait for each other when a node starts, and for how often
they try to connect, once a second. The default of most limits is 30 s. A busy machine exceeds it,
although every part makes progress. `RAY_raylet_client_connect_timeout_milliseconds` is not a limit
but the pause between two attempts: with a long pause, a raylet whose first attempt came too early
slept through its start. The limit for a worker's start is not in these lists (docs/reliability.md,
a start that hangs)."""
MAX_LIMIT_S = 86_400
"""The largest limit: in milliseconds it still fits into the 32 bits that Ray has for it."""
OUR_PACKAGES = ("controller", "llumctl", "tui")
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
TOKEN_CURE = "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/.ray/auth_token"
"""How a user gives llumctl the token of a Ray. `ray start` asks for tokens without being told to
if there is a token at that path, and a plain `ray.init()` of any program leaves one there
(ray 2.60, _private/authentication/authentication_token_setup.py)."""


def ray_authentication(state_dir: str, ray_address: str) -> dict[str, str]:
    """The variables by which the cluster's processes prove themselves to Ray. Our own Ray has its
    own token. For somebody else's Ray the variables in the user's environment are used, also by
    `down`."""
    if ray_address:
        return {key: os.environ[key] for key in AUTH_VARIABLES if key in os.environ}
    token = Path(state_dir) / TOKEN_FILE
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def make_token(authentication: dict[str, str]) -> None:
    """Makes a new token file for our own Ray."""
    with user_files.new_private(Path(authentication["RAY_AUTH_TOKEN_PATH"])) as file:
        file.write(secrets.token_hex(16).encode())


def own_environment() -> dict[str, str]:
    """The user's environment without variables that would change our processes. It always names the
    user: Ray and torch ask for the name, but in a container the user may have no entry in the
    password file."""
    found = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = _without_strangers(found["PYTHONPATH"])
    if not _has_name() and not {"LOGNAME", "USER"} & found.keys():
        found["USER"] = f"uid-{os.getuid()}"
    return found


def _without_strangers(python_path: str) -> str:
    """PYTHONPATH without folders in which another module has the name of one of our packages: that
    module would be imported in place of ours."""
    root = Path(__file__).parents[3]
    kept = []
    for folder in python_path.split(os.pathsep):
        path = Path(folder or ".")
        is_strange = any(
            (path / name / "__init__.py").is_file() or (path / f"{name}.py").is_file()
            for name in OUR_PACKAGES
        )
        if not is_strange or path.resolve() == root:
            kept.append(folder)
    return os.pathsep.join(kept)


def _has_name() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def head_environment(
    nonce: str, authentication: dict[str, str], *, loopback: bool, start_timeout_s: float
) -> dict[str, str]:
    """The complete environment of the head process.

    `loopback`: whether our own Ray must listen on no other address. Ray has no setting for that.
    But one variable says that no machine will join; Ray then takes 127.0.0.1 as its node's address
    (ray 2.60, _private/services.py `get_node_ip_address`), and its servers listen on no other.

    `start_timeout_s`: how long `up` waits. Ray does not give up sooner, unless the user's own
    variables say so.
    """
    limit_s = min(max(60, math.ceil(start_timeout_s)), MAX_LIMIT_S)
    return (
        MEMORY
        | PATIENT
        | dict.fromkeys((*START_LIMITS_S, *START_ATTEMPTS), str(limit_s))
        | dict.fromkeys(START_LIMITS_MS, str(limit_s * 1000))
        | own_environment()
        | authentication
        | ({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if loopback else {})
        | {
            NONCE_VARIABLE: nonce,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            # By default Ray runs workers at nice 15, behind everything else on the machine.
            "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "PYTHONSAFEPATH": "1",
        }
    )
