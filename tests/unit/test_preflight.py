"""What `up` refuses before it starts anything, and the choices that it makes."""

import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from controller.adapters.embedded_model.model_folder import config
from controller.api.errors import LlumctlError, UsageError
from controller.api.settings.settings import Settings
from controller.main import emulation, up
from controller.main.checks import preflight
from controller.main.checks.model_weights import MemorySize, weights_of
from controller.main.machine import capacity
from controller.main.up import explain_failure, head_failure

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


def model_folder(folder: Path, weight_bytes: int = 0, **fields: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config() | fields))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(weight_bytes)  # sparse
    return str(folder)


# -- ports and addresses ------------------------------------------------------------------


def test_a_port_in_use_is_refused_with_one_that_is_free(taken_port: int) -> None:
    with pytest.raises(LlumctlError) as caught:
        preflight.check_port("127.0.0.1", taken_port, "the endpoint", "--port")
    error = caught.value
    assert f"the endpoint cannot listen on 127.0.0.1:{taken_port}" in error.message
    assert "in use" in error.message
    command, _, port = error.hint.rpartition(" ")
    assert command == "llumctl up --port"
    preflight.check_port("127.0.0.1", int(port), "the endpoint", "--port")


def test_a_free_port_stays_free_after_the_check() -> None:
    port = preflight.free_port("127.0.0.1")
    for _ in range(2):
        preflight.check_port("127.0.0.1", port, "the endpoint", "--port")


def test_an_address_that_is_not_this_machine_s_is_refused() -> None:
    with pytest.raises(LlumctlError, match=r"cannot listen on 203\.0\.113\.1:8000"):
        preflight.check_port("203.0.113.1", 8000, "the endpoint", "--port")


def test_a_ray_that_does_not_answer(taken_port: int) -> None:
    preflight.check_ray_address(f"127.0.0.1:{taken_port}")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, but not listened to
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(LlumctlError, match=f"no Ray answers at {address}"):
            preflight.check_ray_address(address)


@pytest.mark.parametrize(
    "address",
    ["auto", "", ":6379", "a:", "a:b", "a:0", "a:65536", "a:" + "9" * 9999, "ray://a:10001", "a:²"],
)
def test_a_ray_address_of_another_form(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        preflight.check_ray_address(address)
    assert caught.value.message == (
        f"cluster.ray_address: {address[:60]!r} is not of the form HOST:PORT"
    )
    assert caught.value.hint == "llumctl up --ray-address 127.0.0.1:6379"


# -- names --------------------------------------------------------------------------------


def test_an_unknown_policy_names_the_nearest() -> None:
    preflight.check_policy("llumnix")
    with pytest.raises(UsageError, match=r"scheduler\.policy.*round-robin"):
        preflight.check_policy("roundrobin")


# -- the model ----------------------------------------------------------------------------


def test_a_model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder(tmp_path)
    found = (str(tmp_path), tmp_path / "config.json")
    assert preflight.resolve_model(str(tmp_path)) == found
    monkeypatch.chdir(tmp_path.parent)
    assert preflight.resolve_model(f"./{tmp_path.name}") == found
    assert preflight.resolve_model(tmp_path.name) == found, "exists here"


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("/no/such/folder", "there is no such folder"),
        ("./nothing", "there is no such folder"),
        ("~nobody-of-that-name/x", "there is no such folder"),
        ("{tmp}", "it has no config.json"),
        ("{tmp}/file", "there is no such folder"),
    ],
)
def test_a_model_folder_that_is_none(tmp_path: Path, model: str, why: str) -> None:
    (tmp_path / "file").touch()
    model = model.format(tmp=tmp_path)
    with pytest.raises(UsageError) as caught:
        preflight.resolve_model(model)
    assert why in caught.value.message
    assert model in caught.value.message


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Any], None]:
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


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.ConnectError("no network\nand a long story"), "no network and a long story"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (404, "the hub answers 404 Not Found"),
        (401, "the hub answers 401 Unauthorized"),
    ],
)
def test_a_hub_model_that_cannot_be_had(hub: Callable[[Any], None], answer: Any, why: str) -> None:
    hub(answer)
    with pytest.raises(LlumctlError) as caught:
        preflight.resolve_model("some/model")
    assert caught.value.message == f"model some/model cannot be fetched: {why}"
    assert "HF_TOKEN" in caught.value.hint


def test_a_hub_model(
    tmp_path: Path, hub: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    hub(200)
    config_file = tmp_path / "config.json"
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_: str(config_file))
    assert preflight.resolve_model("some/model") == ("some/model", config_file)
    with pytest.raises(LlumctlError, match="cannot be fetched"):
        preflight.resolve_model("not a/model/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(LlumctlError, match="HF_HUB_OFFLINE is set"):
        preflight.resolve_model("some/model")


# -- memory -------------------------------------------------------------------------------


def test_a_kv_cache_that_holds_no_request(tmp_path: Path) -> None:
    """vLLM itself keeps one block: the cache holds a block less than its size says."""
    config = Path(model_folder(tmp_path)) / "config.json"
    args = {"dtype": "float32", "max_model_len": 8192, "block_size": 32}
    needed = (8192 + 32) * 4096  # the model has 4,096 bytes of float32 keys and values a token
    preflight.check_kv_cache(args | {"kv_cache_memory_bytes": needed}, config)
    with pytest.raises(UsageError) as caught:
        preflight.check_kv_cache(args | {"kv_cache_memory_bytes": needed - 1}, config)
    assert "holds 8160 tokens, less than one request of max_model_len = 8192" in (
        caught.value.message
    )
    assert f"kv_cache_memory_bytes={2 * needed}" in caught.value.hint
    assert caught.value.hint.endswith("max_model_len=8160")
    half = args | {"dtype": "bfloat16", "kv_cache_memory_bytes": needed // 2}
    preflight.check_kv_cache(half, config)


def test_a_kv_cache_that_cannot_be_judged_is_left_to_vllm(tmp_path: Path) -> None:
    config = Path(model_folder(tmp_path)) / "config.json"
    preflight.check_kv_cache({"kv_cache_memory_bytes": 1, "max_model_len": -1}, config)
    preflight.check_kv_cache({"max_model_len": 9}, config)
    config.write_text('{"hidden_size": 4}')
    preflight.check_kv_cache({"kv_cache_memory_bytes": 1, "max_model_len": 9}, config)


def test_a_context_that_nobody_named_is_the_model_s(tmp_path: Path) -> None:
    config = Path(model_folder(tmp_path)) / "config.json"
    sizes = json.loads(config.read_text())
    config.write_text(json.dumps(sizes | {"max_position_embeddings": 8192}))
    with pytest.raises(UsageError, match="max_model_len = 8192"):
        preflight.check_kv_cache({"dtype": "float32", "kv_cache_memory_bytes": 4096}, config)


@pytest.mark.parametrize("text", ["[]", "null", "7", '"a"'])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    args = {"kv_cache_memory_bytes": 1, "max_model_len": 9}
    with pytest.raises(UsageError, match="holds no JSON object"):
        preflight.check_kv_cache(args, tmp_path / "config.json")


def test_sizes_that_are_none_are_left_to_vllm(tmp_path: Path) -> None:
    """Each of these values once led to a traceback, or to a size below zero."""
    args = {"kv_cache_memory_bytes": 1, "max_model_len": 9, "block_size": 32}
    names = ("num_attention_heads", "hidden_size", "num_hidden_layers")
    bad: list[Any] = [0, -4, None, "four", 1.5, [], {}]
    for name in names:
        for value in bad:
            path = Path(
                model_folder(
                    tmp_path, **{"num_key_value_heads": None, "head_dim": None, name: value}
                )
            )
            preflight.check_kv_cache(args, path / "config.json")
    for changed in ({"max_model_len": "9k"}, {"kv_cache_memory_bytes": None}, {"block_size": -1}):
        preflight.check_kv_cache(args | changed, Path(model_folder(tmp_path)) / "config.json")
    latent = Path(model_folder(tmp_path, kv_lora_rank=512)) / "config.json"
    preflight.check_kv_cache(args, latent)


def test_a_model_for_more_than_text_has_its_sizes_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config()}))
    args = {"kv_cache_memory_bytes": 4096, "max_model_len": 8192}
    with pytest.raises(UsageError, match="less than one request of max_model_len = 8192"):
        preflight.check_kv_cache(args, tmp_path / "config.json")


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    args = {"kv_cache_memory_bytes": 1, "max_model_len": 9}
    with pytest.raises(LlumctlError):
        preflight.check_kv_cache(args, tmp_path / "config.json")


def test_instances_that_do_not_fit_the_memory(
    tmp_path: Path, memory: Callable[[float], None]
) -> None:
    model = Path(model_folder(tmp_path, weight_bytes=2 * GIB))
    args = {"kv_cache_memory_bytes": GIB}
    memory(8.5)
    args |= {"model": str(model)}
    assert preflight.check_memory(args, 2).num_bytes == 4 * GIB
    with pytest.raises(LlumctlError) as caught:
        preflight.check_memory(args, 3)
    assert caught.value.message == (
        "3 instances need about 12.0 GiB (4.0 GiB each), 8.5 GiB are available"
    )
    assert caught.value.hint == "llumctl up -n 2"
    memory(3.0)
    with pytest.raises(LlumctlError) as caught:
        preflight.check_memory(args, 1)
    assert "-n 0" not in caught.value.hint


def test_a_container_has_its_limit_and_not_the_machine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in {"max": "100000", "current": "90000", "stat": "inactive_file 0"}.items():
        (tmp_path / f"memory.{file}").write_text(text)
    group = (str(tmp_path), "memory.max", "memory.current", "inactive_file")
    monkeypatch.setattr(capacity, "CGROUPS", (group,))
    with pytest.raises(LlumctlError, match=r"0\.0 GiB are available"):
        preflight.check_memory({"model": model_folder(tmp_path)}, 1)
    with pytest.raises(LlumctlError, match=r"0\.0 GiB are available"):
        emulation.check_memory(1, 1)
    args = preflight.engine_args(settings(model="m"), "m", 1, 0)
    assert args["kv_cache_memory_bytes"] == 3000


# -- weights ------------------------------------------------------------------------------

HUB_MODEL = "some/model"


def cached(tmp_path: Path, **files: int | dict[str, Any]) -> Path:
    """The hub's cache as a download leaves it. In a name `__` stands for a dot, and `_` for a
    hyphen; a number is a file's size."""
    repo = tmp_path / "models--some--model"
    snapshot = repo / "snapshots" / "abc"
    snapshot.mkdir(parents=True, exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text("abc")
    for key, content in files.items():
        path = snapshot / key.replace("__", ".").replace("_of_", "-of-").replace("_", "-")
        if isinstance(content, int):
            with path.open("wb") as file:
                file.truncate(content)
        else:
            path.write_text(json.dumps(content))
    return snapshot


@pytest.fixture
def hub_sizes(
    hub: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, int | None] | Exception], None]:
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


HubSizes = Callable[[dict[str, int | None] | Exception], None]


def weights(hub_timeout_s: float | None = 1.0, **args: Any) -> MemorySize:
    return weights_of({"model": HUB_MODEL, **args}, hub_timeout_s=hub_timeout_s)


@pytest.mark.usefixtures("hub_sizes")
def test_weights_in_the_hub_s_cache(tmp_path: Path) -> None:
    """Weights are not complete while there are links to nowhere, or shards are missing."""
    snapshot = cached(tmp_path, config__json=config(), model__safetensors=5 * GIB)
    assert weights(None) == MemorySize(5 * GIB)
    (snapshot / "consolidated.safetensors").write_bytes(b"again")
    assert weights(None) == MemorySize(5 * GIB)
    (snapshot / "model.safetensors").unlink()
    (snapshot / "consolidated.safetensors").unlink()
    cached(tmp_path, model_00001_of_00002__safetensors=2 * GIB)
    assert weights(None).unknown == f"{HUB_MODEL} is not all here yet"
    cached(tmp_path, model_00002_of_00002__safetensors=GIB)
    assert weights(None) == MemorySize(3 * GIB)
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    (snapshot / "model-00002-of-00002.safetensors").symlink_to(tmp_path / "incomplete")
    assert weights(None).unknown
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "c"}, "metadata": {}}
    (snapshot / "model.safetensors.index.json").write_text(
        json.dumps(index | {"metadata": {"total_size": 4 * GIB}})
    )
    assert weights(None) == MemorySize(4 * GIB), "the index has it before they are here"


def test_weights_that_are_at_the_hub(tmp_path: Path, hub_sizes: HubSizes) -> None:
    cached(tmp_path, config__json=config())
    shards = {f"model-0000{n}-of-00002.safetensors": 3 * GIB for n in (1, 2)}
    others = {"original/consolidated.00.pth": 9 * GIB, "pytorch_model.bin": 6 * GIB, "a.md": None}
    hub_sizes(shards | others)
    assert weights() == MemorySize(6 * GIB)
    hub_sizes({"pytorch_model.bin": 7, "training_args.bin": 9})
    assert weights() == MemorySize(7)


def test_weights_of_unknown_size_are_said_to_be(tmp_path: Path, hub_sizes: HubSizes) -> None:
    assert weights().unknown == f"the hub does not tell the size of {HUB_MODEL}: no network"
    hub_sizes({"model.safetensors": None})
    assert "knows of no file of weights" in weights().unknown
    assert "load_format=dummy" in weights(load_format="dummy").unknown
    assert weights_of({"model": str(tmp_path)}, hub_timeout_s=1.0).unknown
    for nobodys in ("/no/such/folder", "not a/model/name"):
        assert weights_of({"model": nobodys}, hub_timeout_s=1.0).unknown


def test_weights_are_as_wide_in_memory_as_dtype_says(tmp_path: Path) -> None:
    def of(dtype: str, **fields: Any) -> int:
        folder = model_folder(tmp_path, weight_bytes=1000, **{"torch_dtype": "bfloat16"} | fields)
        return weights_of({"model": folder, "dtype": dtype}, hub_timeout_s=None).num_bytes

    assert (of("auto"), of("bfloat16"), of("float32")) == (1000, 1000, 2000)
    assert of("float32", quantization_config={"quant_method": "awq"}) == 1000


def test_a_hub_model_that_does_not_fit_is_refused_before_its_download(
    tmp_path: Path, hub_sizes: HubSizes, memory: Callable[[float], None]
) -> None:
    memory(8)
    cached(tmp_path, config__json=config())
    hub_sizes({"model.safetensors": 15 * GIB})
    args = {"model": HUB_MODEL, "kv_cache_memory_bytes": GIB}
    with pytest.raises(LlumctlError, match=r"1 instances need about 17\.0 GiB"):
        preflight.check_memory(args, 1)
    hub_sizes(httpx.ConnectError("no network"))
    assert "no network" in preflight.check_memory(args, 1).unknown


@pytest.mark.usefixtures("hub_sizes")
def test_up_says_that_nobody_knows_the_size_of_the_weights(
    tmp_path: Path, memory: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cached(tmp_path, config__json=config() | {"max_position_embeddings": 64})
    said: list[str] = []
    choices = up._vllm_engines(settings(model=HUB_MODEL, instances=1), said.append)
    assert choices["engine_args"]["model"] == HUB_MODEL
    (line,) = said
    assert "whether the weights fit this machine's memory was not checked" in line
    assert "no network" in line


# -- GPUs, instances, threads -------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "count"), [("", 0), ("-1", 0), ("0", 1), ("0,1, 3", 3), ("GPU-ab,MIG-cd", 2)]
)
def test_visible_gpus(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert preflight.num_gpus() == count


def test_gpus_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listing = "GPU 0: H100 (UUID: GPU-1)\n  MIG 1g.10gb: ...\nGPU 1: H100 (UUID: GPU-2)\n"

    def listed(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(stdout=listing)

    monkeypatch.setattr(preflight.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(preflight.subprocess, "run", listed)
    assert preflight.visible_gpus() == ["GPU 0: H100", "GPU 1: H100"]
    for visible, names in (
        ("1", ["GPU 1: H100"]),
        ("1,0", ["GPU 1: H100", "GPU 0: H100"]),
        ("0,7,1", ["GPU 0: H100"]),
        ("0,-1,1", ["GPU 0: H100"]),
        ("7", []),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert preflight.visible_gpus() == names
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    for error in (FileNotFoundError(), subprocess.CalledProcessError(9, "nvidia-smi")):

        def failing(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(preflight.subprocess, "run", failing)
        assert preflight.num_gpus() == 0


def test_how_many_instances_by_default() -> None:
    assert preflight.gpus_per_instance(settings()) == 1
    wide = settings({"tensor_parallel_size": 2, "pipeline_parallel_size": "2"})
    assert preflight.gpus_per_instance(wide) == 4
    assert preflight.default_instances(0, 0) == 2
    assert preflight.default_instances(9, 4) == 2
    with pytest.raises(LlumctlError, match="an instance needs 4 GPUs, this machine has 2"):
        preflight.default_instances(2, 4)
    for size in (0, -1, "two", None, 1.5):
        with pytest.raises(UsageError, match="is not a number of GPUs"):
            preflight.gpus_per_instance(settings({"pipeline_parallel_size": size}))


@pytest.mark.parametrize(
    ("given", "cores", "instances", "threads"),
    [("", 8, 2, 3), ("", 2, 2, 1), ("", 1, 1, 1), ("5", 8, 2, 5), ("0", 8, 2, 3), ("4,2", 8, 2, 3)],
)
def test_threads(
    monkeypatch: pytest.MonkeyPatch, given: str, cores: int, instances: int, threads: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(preflight.os, "cpu_count", lambda: cores)
    assert preflight.threads_per_instance(instances, 1) == threads


# -- engine arguments ---------------------------------------------------------------------


def test_defaults_of_a_cpu_machine(memory: Callable[[float], None]) -> None:
    memory(10)
    args = preflight.engine_args(settings(model="hub/model"), "hub/model", 3, gpus=0)
    assert args == {
        "block_size": 32,
        "kv_cache_memory_bytes": GIB,
        "max_model_len": preflight.AUTO_FIT,
        "model": "hub/model",
        "served_model_name": "hub/model",
        "scheduling_policy": "priority",
    }
    memory(1000)
    capped = preflight.engine_args(settings(model="hub/model"), "hub/model", 3, gpus=0)
    assert capped["kv_cache_memory_bytes"] == 4 * GIB


def test_the_user_s_arguments_win_over_ours(memory: Callable[[float], None]) -> None:
    memory(10)
    own = {"block_size": 64, "kv_cache_memory_bytes": 5, "max_model_len": 100}
    args = preflight.engine_args(settings(own), "/folder", 2, gpus=0)
    assert own.items() <= args.items()
    assert (args["served_model_name"], args["dtype"]) == ("embedded", "float32")


def test_a_gpu_machine_leaves_memory_to_vllm() -> None:
    args = preflight.engine_args(settings(model="hub/model"), "hub/model", 1, gpus=1)
    assert set(args) == {"model", "served_model_name", "scheduling_policy"}


def test_the_embedded_model_s_defaults_hold_a_request(
    tmp_path: Path, memory: Callable[[float], None]
) -> None:
    memory(10)
    args = preflight.engine_args(settings(), "/folder", 2, gpus=0)
    config_file = Path(model_folder(tmp_path)) / "config.json"
    preflight.check_kv_cache(args, config_file)
    with pytest.raises(UsageError, match="less than one request"):
        preflight.check_kv_cache(args | {"kv_cache_memory_bytes": GIB >> 10}, config_file)


# -- when it did not come up --------------------------------------------------------------


def failed(detail: str) -> tuple[Any, Any]:
    ok = SimpleNamespace(id="i-0", state="active", detail="")
    bad = SimpleNamespace(id="i-1", state="failed", detail=detail)
    status = SimpleNamespace(instances=[ok, bad], frontends=[])
    return status, SimpleNamespace(log_dir="/logs", model_name="m")


@pytest.mark.parametrize(
    ("detail", "kind", "hint"),
    [
        ("ValueError: no room for the KV cache", UsageError, "kv_cache_memory_bytes"),
        ("RuntimeError: out of Memory", LlumctlError, "llumctl up -n 1"),
        ("OSError: [Errno 98] Address already in use", LlumctlError, "--port"),
        ("RuntimeError: who knows", LlumctlError, "less /logs/i-1.log"),
    ],
)
def test_a_failed_member_is_explained(detail: str, kind: type, hint: str) -> None:
    error = explain_failure(*failed(detail + "\n  " + 1000 * "x"))
    assert type(error) is kind
    assert error.message.startswith(f"i-1 could not start m: {detail}")
    assert len(error.message) < 700
    assert hint in error.hint


def test_a_head_that_failed_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "head.log"
    log.write_text("one\nRuntimeError: no\n\n")
    assert head_failure(tmp_path, "").message.endswith("or joined: RuntimeError: no")
    log.write_text("")
    assert "h:1 could not be" in head_failure(tmp_path, "h:1").message


def test_a_limit_of_ray_s_own_is_told_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "head.log").write_text("Exception: The current node timed out during startup.")
    hint = head_failure(tmp_path, "").hint
    assert hint == f"llumctl up --timeout 1200      or      less {tmp_path / 'head.log'}"


def test_a_limit_of_processes_that_ray_would_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(limit: int, uid: int = 1000) -> None:
        monkeypatch.setattr(preflight.resource, "getrlimit", lambda _: (limit, limit))
        monkeypatch.setattr(preflight.os, "geteuid", lambda: uid)

    monkeypatch.setattr(preflight, "_threads_of_user", lambda: 100)
    limited(350)
    with pytest.raises(LlumctlError, match="limit of this user's processes leaves 250") as caught:
        preflight.check_threads(2, 1)
    assert caught.value.hint.startswith("ulimit -u 370 ")
    for limit, uid in ((370, 1000), (resource.RLIM_INFINITY, 1000), (350, 0)):
        limited(limit, uid)
        preflight.check_threads(2, 1)


def test_a_cache_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LlumctlError, match="embedded model cannot be made in") as caught:
        preflight.resolve_model("embedded")
    assert caught.value.hint == "XDG_CACHE_HOME=<a folder of yours> llumctl up"


@pytest.mark.process
def test_preflight_needs_neither_torch_nor_ray_nor_vllm() -> None:
    probe = (
        "import controller.main.checks.preflight, controller.main.up, sys;"
        "sys.exit(len({'torch', 'ray', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
