"""vLLM's second model runner (V2) on a CPU, in one process with the first one.

The second runner's kernels are written in Triton, which has no compiler for CPUs. Its interpreter
runs them with numpy, and a step of the embedded model takes 20 ms instead of 5. `prepare` gives
Triton a backend by which vLLM takes it, and vLLM then serves on V2 as it is. Other kernels of
vLLM get the code that they have without Triton, so the first runner works as it always does here.

On a GPU nothing of this is needed: both runners work there, and only `chosen` does something."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch

Runner = Literal["V1", "V2"]
VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
INTERPRETED = not torch.cuda.is_available()
MISSING = INTERPRETED and find_spec("triton") is None


def prepare() -> None:
    """Must be called before vLLM and Triton are imported."""
    if MISSING or not INTERPRETED:
        return
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    from triton.backends import Backend, backends
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class CpuDriver(DriverBase):  # type: ignore[misc]  # its base is Any to mypy
        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> Any:
            return GPUTarget("cpu", 0, 1)

        def get_active_torch_device(self) -> Any:
            return torch.device("cpu")

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError(ty)

        def get_benchmarker(self) -> Any:
            raise NotImplementedError

    backends["cpu"] = Backend(compiler=None, driver=CpuDriver)
    triton.runtime.driver.set_active(CpuDriver())
    _make_the_interpreter_quick()


def _make_the_interpreter_quick() -> None:
    """Three times as quick. The interpreter puts its functions into Triton's modules for each call
    of a kernel or of a function in it; here they stay there. It computes each integer anew with 64
    bits in order to find overflows, which are meant in a hash.

    It also refuses a mask that is not of booleans, which the compiler takes (the mask of a
    grammar's tokens)."""
    from triton import language
    from triton.runtime import interpreter

    patched: set[frozenset[int]] = set()
    patch = interpreter._patch_lang

    def patch_once(function: Any) -> Any:
        modules = (language, language.core)
        seen = frozenset(id(m) for m in modules if m in _modules(function.__globals__))
        if seen not in patched:
            patched.add(seen)
            patch(function)
        return interpreter._LangPatchScope()  # with nothing to restore

    interpreter._patch_lang = patch_once
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    store = builder.create_masked_store

    def masked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        mask = interpreter.TensorHandle(mask.data.astype(bool), language.int1)
        return store(pointers, value, mask, *rest)

    builder.create_masked_store = masked_store


def _modules(names: dict[str, Any]) -> list[Any]:
    return [value for value in names.values() if isinstance(value, type(os))]


def complete() -> None:
    """Imports vLLM, and gives it the kernels that a CPU can run. Must be called before an engine is
    made."""
    if MISSING or not INTERPRETED:
        return
    from controller.adapters.vllm.engine import compile_nothing_on_cpu

    compile_nothing_on_cpu()
    from vllm import triton_utils
    from vllm.platforms import current_platform
    from vllm.v1.sample.ops import topk_topp_sampler

    # What vLLM does where it finds no Triton.
    with mock.patch.object(triton_utils, "HAS_TRITON", False):
        current_platform.register_triton_kernel_overrides()
    topk_topp_sampler.HAS_TRITON = False


@contextmanager
def chosen(runner: Runner) -> Iterator[None]:
    """Engines that are made in the `with` block run this model runner."""
    from vllm import envs

    if runner == "V2" and INTERPRETED:
        widen_the_sampler()
    # vLLM keeps the variables that it has read from its first engine on.
    envs.disable_envs_cache()
    variables = {VARIABLE: str(int(runner == "V2"))}
    if runner == "V2" and INTERPRETED:
        variables["PYTHONPATH"] = str(Path(__file__).with_name("worker_start"))
    with mock.patch.dict(os.environ, variables):
        yield
    envs.disable_envs_cache()


@contextmanager
def scheduled_ahead() -> Iterator[None]:
    """On a CPU, engines that are made in the `with` block may schedule each step while the one
    before it runs, which vLLM switches off there."""
    from vllm.platforms import current_platform

    check = current_platform.check_and_update_config

    def keep(config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = wanted

    with mock.patch.object(type(current_platform), "check_and_update_config", staticmethod(keep)):
        yield


def widen_the_sampler() -> None:
    """The sampler's kernel goes over the vocabulary in one piece instead of ten. Neither the noise
    of a token nor the choice depends on the pieces."""
    from vllm.v1.worker.gpu.sample import gumbel

    if not isinstance(gumbel._gumbel_sample_kernel, _InOnePiece):
        gumbel._gumbel_sample_kernel = _InOnePiece(gumbel._gumbel_sample_kernel)


class _InOnePiece:
    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, int]) -> Any:
        num_tokens, num_pieces = grid

        def launch(*args: Any, **kwargs: Any) -> None:
            largest = args[2]
            largest.fill_(float("-inf"))  # of the pieces that are not computed
            width = kwargs["BLOCK_SIZE"] * num_pieces
            wide = kwargs | {"BLOCK_SIZE": 1 << (width - 1).bit_length()}
            self._kernel[num_tokens, 1](*args, **wide)

        return launch
