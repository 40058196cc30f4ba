"""Remembers where each setting came from, for error messages."""

from llumctl.config.config_file import ConfigFile, edit_command
from llumctl.config.toml_lines import Path


class Origins:
    """An origin that is named later wins, as the value does."""

    def __init__(self, file: ConfigFile | None) -> None:
        self.file = file
        self._names: dict[Path, str] = {}

    def name(self, key: Path, origin: str) -> None:
        self._names[key] = origin

    def given(self, key: Path) -> bool:
        return key[:2] in self._names or self.in_file(key)

    def in_file(self, key: Path) -> bool:
        if self.file is None or key[:2] in self._names:
            return False
        table = self.file.tables.get(str(key[0]))
        return key[1] in table if isinstance(table, dict) and len(key) == 2 else table is not None

    def written(self, key: Path) -> Path:
        """Spells the key as the file does, which may write dashes where an engine argument has
        underscores."""
        table = self.file.tables.get(str(key[0])) if self.file is not None else None
        if key[:2] in self._names or not isinstance(table, dict) or len(key) < 2:
            return key
        for name in table:
            if name.replace("-", "_") == key[1]:
                return (key[0], name, *key[2:])
        return key

    def flag(self, key: Path) -> bool:
        """Whether the setting was given on the command line."""
        return self._names.get(key[:2], "").startswith("-")

    def of(self, key: Path) -> str:
        """Names `FILE:LINE`, a variable or a flag, and for a default the dotted name."""
        if key[:2] in self._names:
            return self._names[key[:2]]
        if self.file is not None and key[0] in self.file.tables:
            return self.file.where(key)
        return ".".join(map(str, key))

    def cure(self, key: Path) -> str:
        """Gives the command that leads to the place where the setting can be changed."""
        name = self._names.get(key[:2], "")
        if name.startswith("LLUMCTL_"):
            return f"unset {name}"
        if not name and self.file is not None:
            return edit_command(self.file.path, self.file.line(key))
        return "llumctl up --help"
