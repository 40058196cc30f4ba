"""What `make sizes` counts, on small trees."""

from pathlib import Path

from tools.sizes import modules_of, table

FILES = {
    "controller/__init__.py": '"""Nothing else."""\n',
    "controller/core/__init__.py": "",
    "controller/core/load.py": "from controller.core import room\n",
    "controller/core/room.py": "def room():\n    from controller.core.load import load\n",
    "controller/core/long.py": "x = 1\n" * 60,
    "llumctl/__init__.py": '"""A docstring,\nover two lines."""\n\n# A comment.\n',
    "llumctl/app.py": "import controller.core.long\nfrom controller.core.room import X\nx = 1\n",
    "tui/__init__.py": "",
}


def test_the_table_has_a_row_for_each_room_and_one_for_all(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    rows = [line.split() for line in table(modules_of(tmp_path), 1234)]
    assert ["controller/core", "4", "63", "2", "2"] in rows
    assert ["together", "8", "66", "3", "2"] in rows
    assert ["import", "circles:", "1", "(aim:", "0)"] in rows
