"""Environment of the head process, inherited by Ray and by every process of the cluster."""

import os
import secrets
from pathlib import Path

NONCE_VARIABLE = "LLUMCTL_NONCE"
"""Marks every process of one cluster, so that `down` finds what an accident left."""


def ray_environment(state_dir: str, nonce: str) -> dict[str, str]:
    token = Path(state_dir) / "ray.token"
    if not token.exists():
        descriptor = os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
    return {
        NONCE_VARIABLE: nonce,
        # A user's own setting wins: another machine's Ray has its own token.
        "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token"),
        "RAY_AUTH_TOKEN_PATH": os.environ.get("RAY_AUTH_TOKEN_PATH", str(token)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONSAFEPATH": "1",
    }
