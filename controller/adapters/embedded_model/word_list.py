"""The word list: which words the tokenizer knows whole, by part of speech."""

from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("words.txt")


@cache
def words() -> dict[str, tuple[str, ...]]:
    """Part of speech -> its words, lower case save for "I", in the order of the file."""
    sections: dict[str, list[str]] = {}
    section: list[str] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            section += line.split()
    return {name: tuple(entries) for name, entries in sections.items()}
