"""The head process's environment, which Ray and every process of the cluster inherit."""

import os
import secrets
from pathlib import Path

NONCE_VARIABLE = "LLUMCTL_NONCE"
"""Marks every process of one cluster, so that `down` finds processes that an accident left."""
TOKEN_FILE = "ray.token"
"""In the cluster's state folder."""
MEMORY = {"MALLOC_ARENA_MAX": "2"}
"""glibc keeps the free memory of up to 8 arenas a core, of 64 MiB each, for the threads that once
used them: after an hour of fuzzing an instance had ten such arenas, full of holes."""
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "86400"}
"""For how many seconds the processes of our own Ray live on without its head, which is a minute by
default. All that it is needed for is to start and end others; `status` says that it is gone."""
AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")


def ray_authentication(state_dir: str, ray_address: str) -> dict[str, str]:
    """How the cluster's processes prove themselves to Ray. Our own Ray has its own token; for
    somebody else's Ray the user's environment counts, for `down` too."""
    if ray_address:
        return {key: os.environ[key] for key in AUTH_VARIABLES if key in os.environ}
    token = Path(state_dir) / TOKEN_FILE
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}


def make_token(authentication: dict[str, str]) -> None:
    """Makes the token file of our own Ray anew."""
    token = Path(authentication["RAY_AUTH_TOKEN_PATH"])
    token.unlink(missing_ok=True)
    descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(16))


def head_environment(
    nonce: str, authentication: dict[str, str], *, loopback: bool
) -> dict[str, str]:
    """All of the head's environment, without RAY_ADDRESS, by which ray.init would join that Ray
    instead of starting one.

    `loopback`: our own Ray listens on no other address. Ray has no setting for that, but this
    variable says that no machine will join, and then it takes 127.0.0.1 for its node's address
    (ray 2.60, _private/services.py `get_node_ip_address`), which its servers bind alone.
    """
    user = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return (
        MEMORY
        | PATIENT
        | user
        | authentication
        | ({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if loopback else {})
        | {
            NONCE_VARIABLE: nonce,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            # Ray's default runs workers at nice 15, after everything else on the machine.
            "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "PYTHONSAFEPATH": "1",
        }
    )
