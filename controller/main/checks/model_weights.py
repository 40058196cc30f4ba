"""How much memory a model's weights take, according to the sizes of the files that vLLM would load.

The files are in a local folder, in the hub's cache, or still at the hub, which also knows their
sizes. If the sizes are not known, the result says so. If it said zero, too many instances would
start, and the kernel would end some of them, or serving instances, because memory runs out."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.api.errors import one_line
from controller.api.settings.settings import EMBEDDED_MODELS
from controller.api.state import user_files

MAX_INDEX_BYTES = 64 << 20
INDEX = "model.safetensors.index.json"
FORMATS = (".safetensors", ".bin", ".pt")
"""The formats in the order in which vLLM looks for them: it loads the first one that exists."""
NO_WEIGHTS = frozenset(
    {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}
)
WIDTHS = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_SHARD = re.compile(r"-\d+-of-(\d+)\.\w+$")


@dataclass(frozen=True, slots=True)
class MemorySize:
    """The memory that the weights, or a whole instance, take. `unknown`: why the weights are not
    included in `num_bytes`; empty if they are."""

    num_bytes: int = 0
    unknown: str = ""


def weights_of(args: Mapping[str, Any], *, hub_timeout_s: float | None) -> MemorySize:
    """The weights of an engine with these arguments of vLLM. If the model is not on this machine,
    the hub is asked, and has `hub_timeout_s` to answer. If `hub_timeout_s` is None, the hub is not
    asked, and the size is unknown."""
    model = str(args["model"])
    load_format = args.get("load_format", "auto")
    if load_format not in ("auto", "hf", "safetensors", "pt"):
        return MemorySize(unknown=f"load_format={load_format} does not read them from known files")
    if model in EMBEDDED_MODELS:  # `up` has not made it yet; it has a few megabytes
        return MemorySize()
    folder = Path(model)
    if not folder.is_dir():
        if model.startswith((".", "/", "~")):
            return MemorySize(unknown=f"there is no folder {model}")
        config_file = cached_config(args)
        if config_file is None:
            return _at_hub(args, hub_timeout_s)
        folder = config_file.parent
        if not _are_here(folder):
            return _as_loaded(_of_index(folder) or _at_hub(args, hub_timeout_s), args, folder)
    num_bytes = _num_bytes(_sizes(folder), _index(folder))
    if not num_bytes:
        return MemorySize(unknown=f"there is no file of weights in {folder}")
    return _as_loaded(MemorySize(num_bytes), args, folder)


def cached_config(args: Mapping[str, Any]) -> Path | None:
    """The config.json that the hub's cache has for a model, in the folder with the model's other
    files; None if the cache does not have it."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(
            str(args["model"]),
            "config.json",
            cache_dir=args.get("download_dir"),
            revision=args.get("revision"),
        )
    except (HFValidationError, OSError):
        return None
    return Path(found) if isinstance(found, str) else None


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files in a folder, by name. The files of the cache are links, which point to
    nothing while a file is being fetched."""
    return {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}


def _index(folder: Path) -> dict[str, Any]:
    """The index file, which names the file of each weight and the total size; empty without an
    index."""
    try:
        found = json.loads(user_files.read((folder / INDEX).resolve(), MAX_INDEX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _files(index: Mapping[str, Any]) -> set[str]:
    files = index.get("weight_map")
    if not isinstance(files, dict):
        return set()
    return {each for each in files.values() if isinstance(each, str)}


def _are_here(folder: Path) -> bool:
    """Whether all weights are on this machine. If they are in several files, each file's name
    contains the number of files."""
    sizes, files = _sizes(folder), _files(_index(folder))
    if files:
        return files <= sizes.keys()
    names = _names(sizes, files)
    shards = [found[1] for name in names if (found := _SHARD.search(name))]
    return bool(names) and all(len(shards) >= int(number) for number in shards)


def _names(sizes: Mapping[str, int], files: set[str]) -> list[str]:
    """The files that vLLM loads: the files that the index names or, without an index, all files of
    one format. The folder may have the weights a second time, in the form of the model's maker
    (`consolidated`); these files are left out."""
    for suffix in FORMATS:
        names = [name for name in sizes if name.endswith(suffix) and name not in NO_WEIGHTS]
        if suffix == FORMATS[0] and files:
            names = [name for name in names if name in files]
        own = [name for name in names if not name.startswith("consolidated")]
        if names:
            return own or names
    return []


def _num_bytes(sizes: Mapping[str, int], index: Mapping[str, Any]) -> int:
    return sum(sizes[name] for name in _names(sizes, _files(index)))


def _of_index(folder: Path) -> MemorySize | None:
    """The total size of the weights according to the index, which is fetched before the weights
    are."""
    metadata = _index(folder).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return MemorySize(size) if type(size) is int and size > 0 else None


def _at_hub(args: Mapping[str, Any], timeout_s: float | None) -> MemorySize:
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    model = str(args["model"])
    if timeout_s is None:
        return MemorySize(unknown=f"{model} is not all here yet")
    try:
        info = HfApi().model_info(
            model, revision=args.get("revision"), files_metadata=True, timeout=timeout_s
        )
    except (HFValidationError, httpx.HTTPError, OSError) as error:
        return MemorySize(unknown=f"the hub does not tell the size of {model}: {one_line(error)}")
    files = {each.rfilename: each.size for each in info.siblings or () if each.size is not None}
    num_bytes = _num_bytes({name: size for name, size in files.items() if "/" not in name}, {})
    if not num_bytes:
        return MemorySize(unknown=f"the hub knows of no file of weights of {model}")
    return MemorySize(num_bytes)


def _as_loaded(found: MemorySize, args: Mapping[str, Any], folder: Path) -> MemorySize:
    """The size of the weights in memory. There each weight has the width of `dtype`, whatever its
    width in the files. The weights of a quantized model keep their width."""
    asked = WIDTHS.get(str(args.get("dtype")))
    if asked is None or args.get("quantization"):
        return found
    try:
        config = json.loads(user_files.read((folder / "config.json").resolve(), MAX_INDEX_BYTES))
    except (OSError, ValueError, RecursionError):
        return found
    if not isinstance(config, dict) or config.get("quantization_config"):
        return found
    written = WIDTHS.get(str(config.get("torch_dtype") or config.get("dtype")))
    if written is None:
        return found
    return MemorySize(found.num_bytes * asked // written, found.unknown)
