"""Tiny language models made on the spot, so that llumctl runs without weights or network.

They write grammatical nonsense that depends on every token before it, ends by itself, and follows
guided decoding. Making one needs neither torch nor vLLM. `embedded` is the one that llumctl serves
by default; `embedded-small` is there for clusters of several models.
"""

import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

__all__ = ["ensure", "folder_of"]

_RECIPE_SUFFIXES = (".py", ".txt", ".jinja")


def ensure(cache_dir: Path, model: str = "embedded") -> Path:
    """Returns the model's folder below `cache_dir`, and makes it on first use.

    The folder's name contains a fingerprint of this package, so a changed recipe gets another
    folder. The folder appears by one rename, complete or not at all. If several processes build it,
    the first one succeeds and the others delete their drafts. A folder named `.building-*` was left
    by a builder that was killed.

    Raises OSError if `cache_dir` cannot be written."""
    folder = folder_of(cache_dir, model)
    if folder.is_dir():
        return folder
    # This imports numpy, so it is done only when it is needed.
    from controller.adapters.embedded_model.model_folder import SHAPES, build

    cache_dir.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".building-", dir=cache_dir))
    try:
        build(draft, SHAPES[model])
        draft.chmod(0o755)
        _publish(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def folder_of(cache_dir: Path, model: str = "embedded") -> Path:
    """The path of the model's folder, whether or not it exists yet."""
    return cache_dir / f"{model}-{_fingerprint()}"


def _publish(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # the rename also fails if another builder was faster
            raise


def _fingerprint() -> str:
    digest = sha256()
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix in _RECIPE_SUFFIXES:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
