"""The LoRA adapters of one engine.

A frontend's request names its adapter by number and digest: the digest stands where vLLM has the
path of the weights. The engine puts the path of its own copy of the files in its place. As the path
contains the digest, vLLM's prefix cache never takes blocks of an earlier adapter of the same name.
vLLM keeps `max_cpu_loras` adapters in memory and reads others again when a step needs them, which
is why the copy must not change.

Touch points of vLLM: lora/request.py `LoRARequest`; v1/engine/core.py `add_lora`, `remove_lora`;
config/lora.py `max_loras`; v1/core/sched/scheduler.py `lora_config`; v1/request.py
`lora_request`.
"""

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from controller.core.fleet.adapters import Adapter

log = logging.getLogger(__name__)

NOT_ENABLED = "the engine was started without enable_lora"


def request_of(adapter: Adapter) -> Any:
    """The adapter as vLLM's app at a frontend knows it."""
    return _request(adapter.name, adapter.number, adapter.digest)


def _request(name: str, number: int, path: str) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=number, lora_path=path)


def adapters_of(requests: Iterable[Any]) -> tuple[int, ...]:
    """The numbers of the adapters of these requests, ascending."""
    adapters = (each.lora_request for each in requests)
    return tuple(sorted({each.lora_int_id for each in adapters if each is not None}))


class EngineAdapters:
    """Used on the engine's thread, except `localized`, which any thread may call."""

    def __init__(self, core: Any) -> None:
        self._core = core
        config = core.scheduler.lora_config
        self.max_live: int = 0 if config is None else config.max_loras
        """How many adapters a step can have."""
        self._loaded: dict[int, tuple[Adapter, Any]] = {}
        """For each loaded adapter, by number, the request by which vLLM knows it here."""

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._loaded)

    def load(self, adapter: Adapter, folder: str) -> None:
        """Loads the adapter from this folder, whose files nobody changes. Raises ValueError if the
        engine cannot take it."""
        if not self.max_live:
            raise ValueError(NOT_ENABLED)
        # vLLM takes two requests of one name for the same adapter, and would activate one only.
        request = _request(f"{adapter.name}#{adapter.number}", adapter.number, folder)
        try:
            taken = self._core.add_lora(request)
        except Exception as error:  # vLLM raises many kinds, and RuntimeError for other processes
            with suppress(Exception):  # it may have a place already
                self._core.remove_lora(adapter.number)
            why = " ".join(str(error).split()).replace(folder, adapter.path)
            raise ValueError(why[:500]) from error
        if not taken:
            raise ValueError("vLLM does not take it; the instance's log says more")
        self._loaded[adapter.number] = adapter, request

    def unload(self, number: int) -> None:
        """Unloads an adapter that no request of the engine uses."""
        del self._loaded[number]
        try:
            self._core.remove_lora(number)
        except Exception:  # what is left takes memory until vLLM needs the place
            log.exception("vLLM does not unload the adapter %d", number)

    def localized(self, asked: Any) -> Any:
        """The request of the same adapter, by number and digest, as it is loaded here; `asked`
        itself if the adapter is not loaded."""
        adapter, here = self._loaded.get(asked.lora_int_id, (None, None))
        return here if adapter is not None and adapter.digest == asked.lora_path else asked

    def has(self, asked: Any) -> bool:
        """Whether this adapter is loaded. `asked` is what `localized` returned."""
        _, here = self._loaded.get(asked.lora_int_id, (None, None))
        return here is asked

    def check(self, asked: Any) -> None:
        """Raises ValueError unless this adapter is loaded, or is None."""
        if asked is None or self.has(asked):
            return
        is_other = asked.lora_int_id in self._loaded
        what = "has other files" if is_other else "is not loaded"
        raise ValueError(f"the LoRA adapter {asked.lora_name} {what} on this instance")

    def fits_beside(self, asked: Any, others: Iterable[Any]) -> bool:
        """Whether a step can have this adapter together with those of these requests."""
        return len({asked.lora_int_id, *adapters_of(others)}) <= self.max_live
