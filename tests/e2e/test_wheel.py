"""The wheel by itself, in a fresh environment, from a folder that would shadow its packages."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return next(out.glob("*.whl"))


def test_wheel_holds_the_three_packages_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"controller", "llumctl", "tui"}
    assert "controller/adapters/embedded_model/words.txt" in names


def test_installed_wheel_serves_from_a_hostile_folder(
    wheel: Path, base_env: dict[str, str], tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = venv / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet", "--no-deps",
         str(wheel)], check=True,
    )  # fmt: skip
    # The dependencies of this environment, but not its editable install: a plain path in a .pth
    # file is only searched, its own .pth files are not read.
    site = next((venv / "lib").glob("python*")) / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    hostile = tmp_path / "hostile"
    (hostile / "tui").mkdir(parents=True)
    (hostile / "controller.py").write_text("raise RuntimeError('the user\\'s controller.py')\n")
    (hostile / "tui" / "__init__.py").write_text("raise RuntimeError('the user\\'s tui')\n")
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
