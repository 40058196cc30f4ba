"""Hooks of mkdocs (mkdocs.yml): what stands outside of docs/ and is linked from there becomes a
part of the site, and links to a folder lead to a list of what is in it.

The pages stay as GitHub shows them, so their links go by the tree: `../CHANGELOG.md`. In the site
the tree's root and docs/ are one folder.
"""

import re
from pathlib import Path
from posixpath import normpath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")
EXAMPLES = "examples"
FOLDERS = ("decisions", "paper", "reference")
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for path in sorted((ROOT / EXAMPLES).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for folder in FOLDERS:
        files.append(File.generated(config, f"{folder}/index.md", content=_listed(folder)))
    return files


def _listed(folder: str) -> str:
    lines = [f"# {folder.capitalize()}", ""]
    for path in sorted((ROOT / "docs" / folder).iterdir()):
        title = path.name
        if path.suffix == ".md":
            title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links by the tree become links by the site."""
    source = page.file.src_uri
    at = source if source in BESIDE or source.startswith(EXAMPLES) else f"docs/{source}"
    here = Path(source).parent

    def moved(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if "://" in target:
            return match[0]
        path = normpath((Path(at).parent / target).as_posix()).removeprefix("docs/")
        path = f"{path}/index.md" if path in FOLDERS else path
        up = "../" * len([part for part in here.parts if part != "."])
        return f"{before}{up}{path}{after}"

    fences = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in fences)
