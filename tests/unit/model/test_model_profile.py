"""Latency profiles: what steps cost, which profiles there are, and what is refused."""

import re
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
    if name == "a10-llama-7b":
        assert config.watermark_blocks == 8, "of 851 and the null block, rounded as vLLM does"


def test_steps_and_copies_cost_what_the_paper_measured(a10, a10x4) -> None:
    """Figure 10: recompute times, steps of a batch of 8,192 tokens, blocking copies."""
    for num_tokens, of_7b_s, of_30b_s in ((256, 0.058, 0.115), (8192, 1.995, 3.546)):
        assert a10.step_time_s([(num_tokens, 0)], 0, 0) == pytest.approx(of_7b_s, rel=0.03)
        assert a10x4.step_time_s([(num_tokens, 0)], 0, 0) == pytest.approx(of_30b_s, rel=0.05)
    for num_decoding, time_s in ((32, 0.06574), (4, 0.05891)):
        assert a10x4.step_time_s([], num_decoding, 8192) == pytest.approx(time_s, rel=0.01)
    for num_tokens, time_s in ((2048, 0.744), (8192, 2.76)):
        copy_s = num_tokens * a10x4.kv_bytes_per_token / a10x4.copy_bytes_per_s
        assert copy_s == pytest.approx(time_s, rel=0.06)


def test_the_formulas(a10: LatencyProfile) -> None:
    assert a10.step_time_s([], 10, 5000) == pytest.approx(0.035 + 5000 * 2.1e-6 + 10 * 0.45e-3)
    prefill_s = 5.58e-3 + 1000 * 202.8e-6 + 1000**2 * 5.09e-9
    assert a10.step_time_s([(1000, 0)], 0, 0) == pytest.approx(prefill_s)
    assert a10.step_time_s([], 0, 0) == 0
    chunks = [(600, 0), (400, 600)]
    apart_s = sum(a10.step_time_s([chunk], 0, 0) for chunk in chunks)
    read_s = 600 * 2.1e-6
    assert apart_s - prefill_s == pytest.approx(a10.prefill_base_s + read_s), "the second reads"
    assert a10.step_time_s(chunks, 0, 0) == pytest.approx(prefill_s + read_s)


def test_a_mixed_step_reads_the_weights_once(a10: LatencyProfile) -> None:
    decode_s, prefill_s = a10.step_time_s([], 10, 5000), a10.step_time_s([(512, 0)], 0, 0)
    mixed_s = a10.step_time_s([(512, 0)], 10, 5000)
    assert decode_s + prefill_s - mixed_s == pytest.approx(a10.decode_base_s)
    # So few tokens are computed while the weights are read anyway, up to their attention.
    few_s = a10.step_time_s([(64, 0)], 10, 5000)
    assert few_s - decode_s == pytest.approx(64**2 * 5.09e-9)


def test_a_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("num_total_blocks = 851", "num_total_blocks = 100"))
    profile = load_profile(str(path))
    assert (profile.name, profile.num_total_blocks) == ("mine", 100)
    path.write_text(text.replace("copy_bytes_per_s = 2400000000.0", "copy_bytes_per_s = 5"))
    assert type(load_profile(str(path)).copy_bytes_per_s) is float
    path.write_text(re.sub(r"(decode_\w+) = \S+", r"\1 = 0.0", text))
    with pytest.raises(ValueError, match="all constants of decode are 0"):
        load_profile(str(path))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("block_size = 16", "block_siez = 16", "unknown key 'block_siez'; did you mean block_size"),
        ("block_size = 16", "", "missing block_size"),
        ("block_size = 16", "block_size = 16.0", "block_size must be of type int, not float"),
        ("block_size = 16", "block_size = true", "block_size must be of type int, not bool"),
        ("block_size = 16", "block_size = 0", "block_size must be positive, not 0"),
        ("decode_base_s = 0.035", "decode_base_s = nan", "decode_base_s must be positive"),
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


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("a10-lama-7b", "there is no profile 'a10-lama-7b': did you mean a10-llama-7b"),
        ("zzz", "no profile 'zzz': there are a10-llama-7b, a10x4-llama-30b"),
        ("file.toml", "cannot read the profile file.toml"),
    ],
)
def test_no_such_profile(name: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_profile(name)
