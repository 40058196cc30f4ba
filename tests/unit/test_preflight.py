"""What `up` refuses before it starts anything, and the choices that it makes."""

import json
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from controller.api.errors import LlumctlError, UsageError
from controller.api.settings.settings import Settings
from controller.main import emulation, up
from controller.main.checks import preflight
from controller.main.checks.model_weights import MemorySize, weights_of
from controller.main.machine import capacity
from controller.main.up import explain_failure, head_failure, refuse_without_token
from tests.unit.model_files import HUB_MODEL, cached, config, config_file, model_folder

GIB = 1 << 30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def set_available(gib: float) -> None:
        monkeypatch.setattr(preflight, "available_bytes", lambda: int(gib * GIB))

    return set_available


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def settings(engine: dict[str, Any] | None = None, **cluster: Any) -> Settings:
    return Settings.model_validate({"cluster": cluster, "engine": engine or {}})


# -- ports, addresses, names --------------------------------------------------------------


def test_a_port_in_use_is_refused_with_one_that_is_free(taken_port: int) -> None:
    with pytest.raises(LlumctlError) as caught:
        preflight.check_port("127.0.0.1", taken_port, "the endpoint", "--port")
    assert f"the endpoint cannot listen on 127.0.0.1:{taken_port}" in caught.value.message
    command, _, port = caught.value.hint.rpartition(" ")
    assert command == "llumctl up --port"
    for _ in range(2):  # it stays free after the check
        preflight.check_port("127.0.0.1", int(port), "the endpoint", "--port")
    with pytest.raises(LlumctlError, match=r"cannot listen on 203\.0\.113\.1:8000") as caught:
        preflight.check_port("203.0.113.1", 8000, "the endpoint", "--port")
    assert caught.value.hint == "llumctl up --host 127.0.0.1"


def test_a_ray_that_does_not_answer(taken_port: int) -> None:
    preflight.check_ray_address(f"127.0.0.1:{taken_port}")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, but not listened to
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(LlumctlError, match=f"no Ray answers at {address}"):
            preflight.check_ray_address(address)
    for other in ("auto", ":6379", "a:", "a:b", "a:0", "a:65536", "a:" + "9" * 9999, "ray://a:1"):
        with pytest.raises(UsageError, match=r"is not of the form HOST:PORT"):
            preflight.check_ray_address(other)


# -- the model ----------------------------------------------------------------------------


def test_a_model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (tmp_path / "file").touch()
    model_folder(folder)
    monkeypatch.chdir(tmp_path)
    for name in (str(folder), "./m", "m"):
        assert preflight.resolve_model(name) == (str(folder), folder / "config.json")
    for name, why in (
        ("./nothing", "there is no such folder"),
        ("~nobody-of-that-name/x", "there is no such folder"),
        (str(tmp_path), "it has no config.json"),
        (f"{tmp_path}/file", "there is no such folder"),
    ):
        with pytest.raises(UsageError, match=why):
            preflight.resolve_model(name)


Hub = Callable[[int | Exception], None]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """An empty cache, and a hub that gives these answers."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)

    def answers(answer: int | Exception) -> None:
        def head(url: str, **_: object) -> httpx.Response:
            if isinstance(answer, Exception):
                raise answer
            return httpx.Response(answer, request=httpx.Request("HEAD", url))

        monkeypatch.setattr(httpx, "head", head)

    return answers


def test_a_hub_model(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    answer: Any
    for answer, why in (
        (httpx.ConnectError("no network\nand a long story"), "no network and a long story"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (404, "the hub answers 404 Not Found"),
    ):
        hub(answer)
        with pytest.raises(LlumctlError, match=f"model some/model cannot be fetched: {why}"):
            preflight.resolve_model(HUB_MODEL)
    hub(200)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: str(tmp_path / "c"))
    assert preflight.resolve_model(HUB_MODEL) == (HUB_MODEL, tmp_path / "c")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(LlumctlError, match="HF_HUB_OFFLINE is set"):
        preflight.resolve_model(HUB_MODEL)
    snapshot = cached(tmp_path)
    assert preflight.resolve_model(HUB_MODEL) == (HUB_MODEL, snapshot / "config.json")


def test_a_cache_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LlumctlError, match="embedded model cannot be made in") as caught:
        preflight.resolve_model("embedded")
    assert caught.value.hint == "XDG_CACHE_HOME=<a folder of yours> llumctl up"


# -- the KV cache -------------------------------------------------------------------------

SMALL = {"kv_cache_memory_bytes": 1, "max_model_len": 9, "block_size": 32}


def test_a_kv_cache_that_holds_no_request(tmp_path: Path) -> None:
    """vLLM itself keeps one block: the cache holds a block less than its size says."""
    file = config_file(tmp_path)
    args = {"dtype": "float32", "max_model_len": 8192, "block_size": 32}
    needed = (8192 + 32) * 4096  # the model has 4,096 bytes of float32 keys and values a token
    preflight.check_kv_cache(args | {"kv_cache_memory_bytes": needed}, file)
    with pytest.raises(UsageError, match="holds 8160 tokens, less than one request") as caught:
        preflight.check_kv_cache(args | {"kv_cache_memory_bytes": needed - 1}, file)
    assert f"kv_cache_memory_bytes={2 * needed}" in caught.value.hint
    assert caught.value.hint.endswith("max_model_len=8160")
    for halves in (
        {"dtype": "bfloat16"},
        {"tensor_parallel_size": 2},  # the size is that of each rank, which has half of the heads
        {"pipeline_parallel_size": 2},
    ):
        half = args | halves
        preflight.check_kv_cache(half | {"kv_cache_memory_bytes": needed // 2}, file)
        with pytest.raises(UsageError, match="holds 8160 tokens"):
            preflight.check_kv_cache(half | {"kv_cache_memory_bytes": needed // 2 - 1}, file)


@pytest.mark.parametrize(
    ("says", "share"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, 0.5),  # Gemma 3, GPT-OSS
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 0.25),  # Qwen3-Next
        ({"layer_types": ["mamba"] * 3 + ["attention"]}, 0.25),  # Granite 4
        ({"sliding_window": 4096, "use_sliding_window": False}, 1.0),  # Qwen2
        ({"sliding_window": None}, 1.0),  # Mistral since version 0.2
        ({"sliding_window": 4096}, 0.0),  # before
        ({"hybrid_override_pattern": "M-M*"}, 0.0),  # Nemotron-H
    ],
)
def test_only_layers_that_keep_every_token_need_room_for_the_whole_context(
    tmp_path: Path, says: dict[str, Any], share: float
) -> None:
    file = config_file(tmp_path, num_hidden_layers=4, **says)
    args = {"dtype": "float32", "max_model_len": 8192, "block_size": 32}
    needed = int((8192 + 32) * 4096 * share)
    preflight.check_kv_cache(args | {"kv_cache_memory_bytes": max(1, needed)}, file)
    if needed:
        with pytest.raises(UsageError, match="less than one request"):
            preflight.check_kv_cache(args | {"kv_cache_memory_bytes": needed - 1}, file)


def test_what_a_config_says(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    written: Any
    for written, says in (
        # a context that nobody named is the model's
        (config() | {"max_position_embeddings": 8192}, "max_model_len = 8192"),
        # a model for more than text has its sizes in a table
        ({"text_config": config() | {"max_position_embeddings": 8192}}, "max_model_len = 8192"),
        ([], "holds no JSON object"),
        (7, "holds no JSON object"),
        ("{", "config.json"),
    ):
        file.write_text(written if isinstance(written, str) else json.dumps(written))
        with pytest.raises(LlumctlError, match=says):
            preflight.check_kv_cache({"dtype": "float32", "kv_cache_memory_bytes": 4096}, file)


def test_a_kv_cache_that_cannot_be_judged_is_left_to_vllm(tmp_path: Path) -> None:
    """Each of the values of a config once led to a traceback, or to a size below zero."""
    file = config_file(tmp_path)
    for key, value in (("max_model_len", -1), ("max_model_len", "9k"), ("block_size", -1)):
        preflight.check_kv_cache(SMALL | {key: value}, file)
    none = {"num_key_value_heads": None, "head_dim": None}
    for name in ("num_attention_heads", "hidden_size", "num_hidden_layers"):
        for wrong in (0, -4, None, "four", 1.5, []):
            preflight.check_kv_cache(SMALL, config_file(tmp_path, **none, **{name: wrong}))
    preflight.check_kv_cache(SMALL, config_file(tmp_path, kv_lora_rank=512))
    file.write_text('{"hidden_size": 4}')
    preflight.check_kv_cache(SMALL, file)


# -- memory -------------------------------------------------------------------------------


def test_instances_that_do_not_fit_the_memory(
    tmp_path: Path, memory: Callable[[float], None]
) -> None:
    memory(8.5)
    args = {"kv_cache_memory_bytes": GIB, "model": model_folder(tmp_path, weight_bytes=2 * GIB)}
    assert preflight.check_memory(args, 2).num_bytes == 4 * GIB
    with pytest.raises(LlumctlError, match=r"about 12\.0 GiB .*, 8\.5 GiB are avail") as caught:
        preflight.check_memory(args, 3)
    assert caught.value.hint == "llumctl up -n 2"
    memory(3.0)
    with pytest.raises(LlumctlError) as caught:
        preflight.check_memory(args, 1)
    assert "-n 0" not in caught.value.hint


def test_a_container_has_its_limit_and_not_the_machine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def set_limit(limit: str) -> None:
        files = {"max": limit, "current": "90000", "stat": "anon 5\ninactive_file 300\n"}
        for file, text in files.items():
            (tmp_path / f"memory.{file}").write_text(text)

    group = (str(tmp_path), "memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(capacity, "CGROUPS", (group,))
    assert capacity.available_bytes() > 10_300, "no control group"
    set_limit("max\n")
    assert capacity.available_bytes() > 10_300
    set_limit("100000\n")
    assert capacity.available_bytes() == 10_300
    with pytest.raises(LlumctlError, match=r"0\.0 GiB are available"):
        emulation.check_memory(1, 1)
    args = preflight.engine_args(settings(model="m"), "m", 1, 0)
    assert args["kv_cache_memory_bytes"] == 3090


# -- weights ------------------------------------------------------------------------------

HubSizes = Callable[[dict[str, int | None] | Exception], None]


@pytest.fixture
def hub_sizes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> HubSizes:
    """A hub that says how large its files are, or fails."""
    import huggingface_hub

    hub(404)

    def says(sizes: dict[str, int | None] | Exception) -> None:
        def model_info(_: object, model: str, **options: Any) -> SimpleNamespace:
            assert options["files_metadata"]
            if isinstance(sizes, Exception) or model != HUB_MODEL:
                raise sizes if isinstance(sizes, Exception) else OSError("404")
            files = [SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
            return SimpleNamespace(siblings=files)

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)

    says(httpx.ConnectError("no network"))
    return says


def weights(hub_timeout_s: float | None = 1.0, **args: Any) -> MemorySize:
    return weights_of({"model": HUB_MODEL, **args}, hub_timeout_s=hub_timeout_s)


SHARD, LAST_SHARD = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))


@pytest.mark.usefixtures("hub_sizes")
def test_weights_in_the_hub_s_cache(tmp_path: Path) -> None:
    """Weights are not complete while there are links to nowhere, or shards are missing."""
    snapshot = cached(tmp_path, {"model.safetensors": 5 * GIB})
    assert weights(None) == MemorySize(5 * GIB)
    (snapshot / "model.safetensors").unlink()
    cached(tmp_path, {SHARD: 2 * GIB})
    assert weights(None).unknown == f"{HUB_MODEL} is not all here yet"
    cached(tmp_path, {LAST_SHARD: GIB})
    assert weights(None) == MemorySize(3 * GIB)
    (snapshot / LAST_SHARD).unlink()
    (snapshot / LAST_SHARD).symlink_to(tmp_path / "incomplete")
    assert weights(None).unknown
    index = {"weight_map": {"a": SHARD, "b": "c"}, "metadata": {"total_size": 4 * GIB}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights(None) == MemorySize(4 * GIB), "the index has it before they are here"


def test_weights_that_are_at_the_hub_or_in_a_folder(tmp_path: Path, hub_sizes: HubSizes) -> None:
    assert weights().unknown == f"the hub does not tell the size of {HUB_MODEL}: no network"
    cached(tmp_path)
    others = {"original/consolidated.00.pth": 9 * GIB, "pytorch_model.bin": 6 * GIB, "a.md": None}
    hub_sizes({SHARD: 3 * GIB, LAST_SHARD: 3 * GIB} | others)
    assert weights() == MemorySize(6 * GIB)
    hub_sizes({"pytorch_model.bin": 7, "training_args.bin": 9})
    assert weights() == MemorySize(7)
    hub_sizes({"model.safetensors": None})
    assert "knows of no file of weights" in weights().unknown
    assert "load_format=dummy" in weights(load_format="dummy").unknown
    for dtype, fields, num_bytes in (
        ("auto", {}, 1000),
        ("float32", {}, 2000),
        ("float32", {"quantization_config": {"quant_method": "awq"}}, 1000),
    ):
        folder = model_folder(tmp_path, weight_bytes=1000, torch_dtype="bfloat16", **fields)
        assert weights(None, model=folder, dtype=dtype).num_bytes == num_bytes
    for nobodys in ("/no/such/folder", "not a/model/name"):
        assert weights(model=nobodys).unknown


def test_a_hub_model_that_does_not_fit_is_refused_before_its_download(
    tmp_path: Path,
    hub_sizes: HubSizes,
    memory: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory(8)
    cached(tmp_path, max_position_embeddings=64)
    hub_sizes({"model.safetensors": 15 * GIB})
    with pytest.raises(LlumctlError, match=r"1 instances need about 17\.0 GiB"):
        preflight.check_memory({"model": HUB_MODEL, "kv_cache_memory_bytes": GIB}, 1)
    hub_sizes(httpx.ConnectError("no network"))
    said: list[str] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (choices,) = up.choose_vllm_engines([settings(model=HUB_MODEL, instances=1)], said.append)
    assert choices["engine_args"]["model"] == HUB_MODEL
    (line,) = said
    assert "whether the weights fit this machine's memory was not checked" in line


# -- GPUs, instances, threads -------------------------------------------------------------


def test_visible_gpus_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "which", lambda _: None)
    for visible, count in (("", 0), ("-1", 0), ("0,1, 3", 3), ("GPU-ab,MIG-cd", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert preflight.num_gpus() == count


@pytest.mark.process
def test_visible_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    listing = "GPU 0: H100 (UUID: GPU-1)\\n  MIG 1g.10gb: ...\\nGPU 1: H100 (UUID: GPU-2)\\n"
    program.write_text(f"#!/bin/sh\nprintf '{listing}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert preflight.visible_gpus() == ["GPU 0: H100", "GPU 1: H100"]
    for visible, names in (("1,0", ["GPU 1: H100", "GPU 0: H100"]), ("0,2,1", ["GPU 0: H100"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert preflight.visible_gpus() == names
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for broken in ("#!/bin/sh\necho 'no driver' >&2\nexit 9\n", "not a program\0"):
        program.write_text(broken)
        assert preflight.visible_gpus() == []


def test_how_many_instances_by_default_and_which_policies() -> None:
    assert preflight.gpus_per_instance(settings()) == 1
    wide = settings({"tensor_parallel_size": 2, "pipeline_parallel_size": "2"})
    assert preflight.gpus_per_instance(wide) == 4
    assert preflight.default_instances(0, 0) == 2
    assert preflight.default_instances(9, 4) == 2
    assert preflight.default_instances(4, 4) == 1
    with pytest.raises(LlumctlError, match="an instance needs 4 GPUs, this machine has 2"):
        preflight.default_instances(2, 4)
    preflight.check_policy("llumnix")
    with pytest.raises(UsageError, match=r"scheduler\.policy.*round-robin"):
        preflight.check_policy("roundrobin")
    for size in (0, -1, "two", None, 1.5):
        with pytest.raises(UsageError, match="is not a number of GPUs"):
            preflight.gpus_per_instance(settings({"pipeline_parallel_size": size}))


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, cores, threads in (("", 8, 3), ("", 1, 1), ("5", 8, 5), ("0", 8, 3), ("4,2", 8, 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        monkeypatch.setattr(preflight.os, "cpu_count", lambda found=cores: found)
        assert preflight.threads_per_rank(2, 1) == threads


def test_a_limit_of_processes_that_ray_would_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(limit: int, uid: int = 1000) -> None:
        monkeypatch.setattr(preflight.resource, "getrlimit", lambda _: (limit, limit))
        monkeypatch.setattr(preflight.os, "geteuid", lambda: uid)

    monkeypatch.setattr(preflight, "_threads_of_user", lambda: 100)
    limited(369)
    with pytest.raises(LlumctlError, match="limit of this user's processes leaves 269") as caught:
        preflight.check_threads(2, 1)
    assert caught.value.hint.startswith("ulimit -u 370 ")
    for limit, uid in ((370, 1000), (resource.RLIM_INFINITY, 1000), (350, 0)):
        limited(limit, uid)
        preflight.check_threads(2, 1)


def test_the_memory_of_several_ranks() -> None:
    """Each rank is a process, with a KV cache of the given size; the ranks divide the weights."""
    args = {"model": "/no/folder", "kv_cache_memory_bytes": GIB}
    one, two = (
        preflight.instance_memory(args | more, num_gpus=0, hub_timeout_s=None).num_bytes
        for more in ({}, {"tensor_parallel_size": 2})
    )
    assert two - one == GIB + 2 * preflight.RANK_BYTES


# -- engine arguments ---------------------------------------------------------------------


def test_engine_arguments_by_machine_and_by_user(
    tmp_path: Path, memory: Callable[[float], None]
) -> None:
    memory(10)
    hub_model = settings(model="hub/model")
    ours = {"model": "hub/model", "served_model_name": "hub/model", "scheduling_policy": "priority"}
    fitted = {"block_size": 32, "max_model_len": preflight.AUTO_FIT}
    args = preflight.engine_args(hub_model, "hub/model", 3, gpus=0)
    assert args == ours | fitted | {"kv_cache_memory_bytes": GIB}
    assert preflight.engine_args(hub_model, "hub/model", 1, gpus=1) == ours, "vLLM's to choose"
    on_gpu = preflight.instance_memory({"kv_cache_memory_bytes": 9}, num_gpus=1, hub_timeout_s=None)
    assert on_gpu == MemorySize(preflight.INSTANCE_BYTES)
    divided = settings({"tensor_parallel_size": 2}, model="hub/model")
    of_ranks = preflight.engine_args(divided, "hub/model", 3, gpus=0)
    assert of_ranks["kv_cache_memory_bytes"] == GIB // 2, "for each of two ranks"
    own = {"block_size": 64, "kv_cache_memory_bytes": 5, "max_model_len": 100}
    args = preflight.engine_args(settings(own), "/folder", 2, gpus=0)
    assert own.items() <= args.items()
    assert (args["served_model_name"], args["dtype"]) == ("embedded", "float32")
    embedded = preflight.engine_args(settings(), "/folder", 2, gpus=0)
    preflight.check_kv_cache(embedded, config_file(tmp_path))
    memory(1000)
    capped = preflight.engine_args(hub_model, "hub/model", 3, gpus=0)
    assert capped["kv_cache_memory_bytes"] == 4 * GIB


# -- when it did not come up --------------------------------------------------------------


def test_a_failed_member_is_explained() -> None:
    kind: type
    for detail, kind, hint in (
        ("ValueError: no room for the KV cache", UsageError, "kv_cache_memory_bytes"),
        ("RuntimeError: out of Memory", LlumctlError, "llumctl up -n 1"),
        ("OSError: [Errno 98] Address already in use", LlumctlError, "--port"),
        ("RuntimeError: who knows", LlumctlError, "less /logs/i-1.log"),
    ):
        bad = SimpleNamespace(id="i-1", state="failed", detail=detail + "\n  " + 1000 * "x")
        status: Any = SimpleNamespace(instances=[bad], frontends=[])
        plan: Any = SimpleNamespace(log_dir="/logs", model_name="m")
        error = explain_failure(status, plan)
        assert type(error) is kind
        assert error.message.startswith(f"i-1 could not start m: {detail}")
        assert len(error.message) < 700
        assert hint in error.hint


def test_a_head_that_failed_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "head.log"
    log.write_text("one\nRuntimeError: no\n\n")
    assert head_failure(tmp_path, "").message.endswith("or joined: RuntimeError: no")
    log.write_text("Exception: The current node timed out during startup.")
    hint = head_failure(tmp_path, "").hint
    assert hint == f"llumctl up --timeout 1200      or      less {log}"


def test_a_ray_that_asks_for_a_token_is_told_apart_from_a_slow_one(tmp_path: Path) -> None:
    refuse_without_token(tmp_path, "192.0.2.1:6379")
    log = tmp_path / "head.log"
    log.write_text("Connecting to existing Ray cluster\n")
    refuse_without_token(tmp_path, "192.0.2.1:6379")
    log.write_text("Connecting\nUnauthenticated: RPC error: InvalidAuthToken: missing\n")
    refuse_without_token(tmp_path, "")
    with pytest.raises(LlumctlError, match=r"Ray at 192.0.2.1:6379 asks for its token") as found:
        refuse_without_token(tmp_path, "192.0.2.1:6379")
    assert found.value.hint.startswith("export RAY_AUTH_MODE=token")
