"""The wheel by itself, in a fresh environment, from a folder that would shadow its packages."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.cluster import Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist is beside it."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), "."],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return next(out.glob("*.whl"))


def test_wheel_and_sdist_hold_the_three_packages_only(wheel: Path) -> None:
    packages = {"controller", "llumctl", "tui"}
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == packages
    assert "controller/adapters/embedded_model/words.txt" in names
    assert "llumctl/web/page.html" in names
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as sdist:
        tops = {name.split("/")[1] for name in sdist.getnames()}
    project = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
    assert tops == packages | project | {"PKG-INFO", ".gitignore"}


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel is installed there, and the dependencies of this environment are found."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps",
         str(wheel)], check=True,
    )  # fmt: skip
    # The editable install of this environment is not found: a plain path in a .pth file is only
    # searched, its own .pth files are not read.
    site = next((venv / "lib").glob("python*")) / "site-packages"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(packages) + "\n")
    return venv


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    (tmp_path / "tui").mkdir()
    (tmp_path / "controller.py").write_text("raise RuntimeError('the user\\'s controller.py')\n")
    (tmp_path / "tui" / "__init__.py").write_text("raise RuntimeError('the user\\'s tui')\n")
    return tmp_path


WHERE = """
import sys
import controller.main.plan, llumctl.app, tui.app
print(*(sys.modules[name].__file__ for name in ("controller", "llumctl", "tui")), sep="\\n")
"""


def test_installed_wheel_is_imported_in_a_hostile_folder(
    venv: Path, hostile: Path, base_env: dict[str, str]
) -> None:
    """The command comes as far as planning a cluster, and every package is the wheel's."""
    cluster = Cluster(base_env, name="wheel", cwd=str(hostile), llumctl=str(venv / "bin/llumctl"))
    planned = cluster.run("up", "./no-such-model")
    assert planned.returncode == 2, planned.stderr
    assert "there is no model folder" in planned.stderr
    found = subprocess.run(
        [venv / "bin" / "python", "-P", "-c", WHERE],
        cwd=hostile, env=base_env, capture_output=True, text=True,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert [Path(file).is_relative_to(venv) for file in found.stdout.split()] == [True] * 3


@pytest.mark.full
def test_installed_wheel_serves_from_a_hostile_folder(
    venv: Path, hostile: Path, base_env: dict[str, str]
) -> None:
    cluster = Cluster(
        base_env,
        name="wheel",
        cwd=str(hostile),
        llumctl=str(venv / "bin" / "llumctl"),
        up_args=("-n", "1"),
    )
    with cluster.running():
        assert cluster.run("status", "--check").returncode == 0
        cluster.interrupt()
        assert cluster.process is not None
        assert cluster.process.wait(timeout=60) == 0, cluster.read_stderr()
        assert not cluster.leftovers()
