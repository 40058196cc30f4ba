"""What `make sizes` counts, on small trees."""

from pathlib import Path

from tools.sizes import circles, importers, listing, modules_of, num_code_lines, table

CODE = '''"""A docstring,
over two lines."""

import os  # with a comment

# A comment.
LIMIT_S = 5.0
"""What describes a constant is a string like any other."""


class Held:
    """A docstring."""

    def told(self) -> str:
        """A docstring."""
        return """over
two lines"""
'''
FILES = {
    "controller/__init__.py": '"""Nothing else."""\n',
    "controller/core/__init__.py": "",
    "controller/core/load.py": "from controller.core import room\n",
    "controller/core/room.py": "def room():\n    from controller.core.load import load\n",
    "controller/core/long.py": "x = 1\n" * 60,
    "llumctl/__init__.py": "",
    "llumctl/app.py": "import controller.core.long\nfrom controller.core.room import X\nx = 1\n",
    "tui/__init__.py": "",
}


def tree(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_lines_of_code_are_those_without_blanks_comments_and_docstrings() -> None:
    assert num_code_lines(CODE) == 7


def test_importers_count_also_inside_functions_and_a_package_only_for_itself(
    tmp_path: Path,
) -> None:
    counts = importers(modules_of(tree(tmp_path)))
    assert counts == {
        "controller.core.room": 2,
        "controller.core.load": 1,
        "controller.core.long": 1,
    }


def test_circles_are_groups_that_reach_each_other() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a", "e"}}) == [
        ["a", "b", "c"]
    ]


def test_the_table_has_a_row_for_each_room_and_one_for_all(tmp_path: Path) -> None:
    rows = [line.split() for line in table(modules_of(tree(tmp_path)), 1234)]
    assert ["controller/core", "4", "63", "2", "2"] in rows
    assert ["together", "8", "66", "3", "2"] in rows
    assert ["import", "circles:", "1", "(aim:", "0)"] in rows


def test_the_list_names_files_and_importers(tmp_path: Path) -> None:
    lines = list(listing(modules_of(tree(tmp_path))))
    assert "    2 controller/core/room.py" in lines
    assert "  controller.core.long by llumctl.app" in lines
    assert "  controller.core.load, controller.core.room" in lines
