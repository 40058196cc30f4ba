"""`make release`: runs an installed llumctl as its user would, outside the checkout: its version, a
command without a cluster, and an emulated cluster that answers a request with the right tokens.

    python -m tools.try_release BIN/llumctl
"""

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import httpx

from controller.api import token_sequence
from tools.cluster import Cluster

NUM_TOKENS = 16


def main(llumctl: str) -> None:
    with tempfile.TemporaryDirectory(prefix="llumctl-release-") as folder:
        env = _environment(Path(folder))
        cluster = Cluster(
            env,
            name="release",
            cwd=folder,
            llumctl=llumctl,
            up_args=("-n", "2", "--engine", "emulated", "--frontends", "1"),
        )
        said = _run(cluster, "--version")
        if version("llumctl") not in said:
            sys.exit(f"it says it is {said.strip()!r}, and this is {version('llumctl')}")
        where = _run_python(Path(llumctl).with_name("python"), folder, env)
        if Path(llumctl).parents[1] not in Path(where).parents:
            sys.exit(f"it runs the code of {where}, not that of the wheel")
        _run(cluster, "help")
        with cluster.running():
            _answers(cluster)
        sys.stdout.write(f"{said.strip()} is installed from its wheel, and serves\n")


def _environment(folder: Path) -> dict[str, str]:
    """Without PYTHONPATH and llumctl's variables, and with folders of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith(("LLUMCTL_", "RAY_"))
    }
    for name in ("CONFIG", "STATE", "DATA", "CACHE"):
        kept[f"XDG_{name}_HOME"] = str(folder / name.lower())
    return kept


def _run(cluster: Cluster, *args: str) -> str:
    done = subprocess.run(
        [cluster.llumctl, *args],
        env=cluster.env,
        cwd=cluster.cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        sys.exit(f"llumctl {' '.join(args)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _run_python(python: Path, folder: str, env: dict[str, str]) -> str:
    code = "import controller; print(controller.__file__)"
    command = [str(python), "-c", code]
    return subprocess.check_output(command, env=env, cwd=folder, text=True).strip()


def _answers(cluster: Cluster) -> None:
    prompt = [400, 401, 402]
    body = {"model": "embedded", "prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True,
            "return_token_ids": True}  # fmt: skip
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=60).raise_for_status()
    tokens = answer.json()["choices"][0]["token_ids"]
    start = token_sequence.start(prompt)
    if tokens != [token_sequence.token(start, place) for place in range(NUM_TOKENS)]:
        sys.exit(f"wrong tokens: {tokens}")


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
