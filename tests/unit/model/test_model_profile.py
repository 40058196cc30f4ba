"""Latency profiles: what steps cost, which profiles there are, and what is refused."""

from dataclasses import fields
from pathlib import Path

import pytest

from controller.model.profile import LatencyProfile, ModelConfig, load_profile, profile_names


@pytest.fixture
def a10() -> LatencyProfile:
    return load_profile("a10-llama-7b")


@pytest.fixture
def a10x4() -> LatencyProfile:
    return load_profile("a10x4-llama-30b")


@pytest.fixture
def text(a10: LatencyProfile) -> str:
    """A profile file that is right."""
    names = (f.name for f in fields(a10) if f.name != "name")
    return "\n".join(f"{name} = {_toml(getattr(a10, name))}" for name in names)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'''{value}'''" if isinstance(value, str) else repr(value)


@pytest.mark.parametrize("name", profile_names())
def test_what_is_shipped(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.source) > 200, "a profile says where its figures are from"
    config = ModelConfig.of(profile)
    assert config.max_model_len <= config.num_total_blocks * config.block_size
    assert (config.mode, config.prefix_caching) == ("chunked", True)


def test_the_watermark_is_rounded_as_vllm_rounds_it(a10: LatencyProfile) -> None:
    assert ModelConfig.of(a10).watermark_blocks == 8  # of 851 and the null block


# Figure 10 of the paper: recompute times.
@pytest.mark.parametrize(
    ("num_tokens", "of_7b_s", "of_30b_s"),
    [(256, 0.058, 0.115), (1024, 0.220, 0.443), (8192, 1.995, 3.546)],
)
def test_a_prefill_costs_what_the_paper_measured(a10, a10x4, num_tokens, of_7b_s, of_30b_s) -> None:
    assert a10.step_time_s([(num_tokens, 0)], 0, 0) == pytest.approx(of_7b_s, rel=0.03)
    assert a10x4.step_time_s([(num_tokens, 0)], 0, 0) == pytest.approx(of_30b_s, rel=0.05)


# The same figure: steps of a batch of 8,192 tokens, without migration.
@pytest.mark.parametrize(
    ("num_decoding", "time_s", "within"), [(32, 0.06574, 0.01), (4, 0.05891, 0.01)]
)
def test_a_decode_of_llama_30b_costs_what_the_paper_measured(
    a10x4: LatencyProfile, num_decoding: int, time_s: float, within: float
) -> None:
    assert a10x4.step_time_s([], num_decoding, 8192) == pytest.approx(time_s, rel=within)


# The same figure: blocking copies.
@pytest.mark.parametrize(("num_tokens", "time_s"), [(2048, 0.744), (8192, 2.76)])
def test_a_copy_of_llama_30b_takes_as_long_as_the_paper_measured(a10x4, num_tokens, time_s) -> None:
    copy_s = num_tokens * a10x4.kv_bytes_per_token / a10x4.copy_bytes_per_s
    assert copy_s == pytest.approx(time_s, rel=0.06)


def test_the_estimate_of_h100_llama_8b_is_what_its_source_says() -> None:
    """From the data sheets of the GPU and the model's sizes, up to the model's own context."""
    h100 = load_profile("h100-llama-8b")
    bytes_per_s, flop_per_s, num_params = 0.8 * 3.35e12, 0.5 * 989e12, 8.03e9
    assert h100.max_model_len == 131_072
    assert h100.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    for found, expected in (
        (h100.prefill_per_token_s, 2 * num_params / flop_per_s),
        (h100.prefill_per_token_squared_s, 2 * 32 * 4096 / flop_per_s),
        (h100.decode_base_s, 2 * num_params / bytes_per_s + 1e-3),
        (h100.decode_per_context_token_s, h100.kv_bytes_per_token / bytes_per_s),
        (h100.num_total_blocks, (0.9 * 79.6 - 15 - 2) * 2**30 / h100.kv_bytes_per_token / 16),
    ):
        assert found == pytest.approx(expected, rel=0.02)
    longest_s = h100.step_time_s([(h100.max_model_len, 0)], 0, 0)
    assert longest_s == pytest.approx(4.3 + 9.1, rel=0.01)


def test_the_formulas(a10: LatencyProfile) -> None:
    assert a10.step_time_s([], 10, 5000) == pytest.approx(0.035 + 5000 * 2.1e-6 + 10 * 0.45e-3)
    assert a10.step_time_s([(100, 0)], 0, 0) == pytest.approx(
        5.58e-3 + 100 * 202.8e-6 + 100**2 * 5.09e-9
    )
    assert a10.step_time_s([], 0, 0) == 0


def test_chunks_cost_the_attention_of_the_whole(a10: LatencyProfile) -> None:
    whole = a10.step_time_s([(1000, 0)], 0, 0)
    chunks = sum(a10.step_time_s([chunk], 0, 0) for chunk in [(600, 0), (400, 600)])
    assert chunks - whole == pytest.approx(a10.prefill_base_s)
    together = a10.step_time_s([(600, 0), (400, 600)], 0, 0)
    assert together == pytest.approx(whole)


def test_a_mixed_step_reads_the_weights_once(a10: LatencyProfile) -> None:
    decode = a10.step_time_s([], 10, 5000)
    prefill = a10.step_time_s([(512, 0)], 0, 0)
    mixed = a10.step_time_s([(512, 0)], 10, 5000)
    assert max(decode, prefill) < mixed < decode + prefill
    assert decode + prefill - mixed == pytest.approx(a10.decode_base_s)
    # So few tokens are computed while the weights are read anyway, up to their attention.
    few = a10.step_time_s([(64, 0)], 10, 5000)
    assert few - decode == pytest.approx(64**2 * 5.09e-9)


def test_a_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("num_total_blocks = 851", "num_total_blocks = 100"))
    profile = load_profile(str(path))
    assert (profile.name, profile.num_total_blocks) == ("mine", 100)
    path.write_text(text.replace("copy_bytes_per_s = 2400000000.0", "copy_bytes_per_s = 5"))
    assert type(load_profile(str(path)).copy_bytes_per_s) is float


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("block_size = 16", "block_siez = 16", "unknown key 'block_siez'; did you mean block_size"),
        ("block_size = 16", "", "missing block_size"),
        ("block_size = 16", "block_size = 16.0", "block_size must be of type int, not float"),
        ("block_size = 16", "block_size = true", "block_size must be of type int, not bool"),
        ("block_size = 16", "block_size = 0", "block_size must be positive, not 0"),
        ("measured = true", "measured = 1", "measured must be of type bool, not int"),
        ("decode_base_s = 0.035", "decode_base_s = -1", "decode_base_s must be positive"),
        ("decode_base_s = 0.035", "decode_base_s = nan", "decode_base_s must be positive"),
        ("decode_base_s = 0.035", "decode_base_s = inf", "decode_base_s must be positive"),
        ("watermark_ratio = 0.01", "watermark_ratio = 1.0", "watermark_ratio must be below 1"),
        ("measured = true", "measured =", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong(text, tmp_path, old, new, complaint) -> None:
    path = tmp_path / "mine.toml"
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=complaint) as caught:
        load_profile(str(path))
    assert str(path) in str(caught.value)


def test_a_constant_may_be_zero_but_no_step(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    for name in ("watermark_ratio = 0.01", "decode_base_s = 0.035"):
        text = text.replace(name, f"{name.split()[0]} = 0")
    path.write_text(text)
    profile = load_profile(str(path))
    assert profile.step_time_s([], 1, 1) == pytest.approx(0.45e-3 + 2.1e-6)
    assert ModelConfig.of(profile).watermark_blocks == 0
    for name in ("decode_per_request_s = 0.00045", "decode_per_context_token_s = 2.1e-06"):
        text = text.replace(name, f"{name.split()[0]} = 0.0")
    path.write_text(text)
    with pytest.raises(ValueError, match="all constants of decode are 0"):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("a10-lama-7b", "there is no profile 'a10-lama-7b': did you mean a10-llama-7b?"),
        (
            "zzz",
            "no profile 'zzz': there are a10-llama-7b, a10x4-llama-30b, h100-llama-7b",
        ),
        ("no/such/file", "cannot read the profile no/such/file"),
        ("file.toml", "cannot read the profile file.toml"),
    ],
)
def test_no_such_profile(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("?", r"\?")):
        load_profile(name)
