"""Our copy of vLLM's messages against vLLM's own encoder, decoder and structs."""

import functools
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1 import engine as vllm_engine
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics import stats as vllm_stats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from controller.adapters import vllm_wire as wire

EOS = 1


def request(request_id: str = "r-1", **fields: Any) -> Any:
    dice = random.Random(request_id)
    params = SamplingParams(**fields.pop("sampling", {}))
    params = fields.pop("sampling_params", params)
    params.update_from_generation_config({"eos_token_id": EOS}, EOS)
    return EngineCoreRequest(
        **{
            "request_id": request_id,
            "prompt_token_ids": [dice.randrange(300, 9000) for _ in range(40)],
            "mm_features": None,
            "sampling_params": params,
            "pooling_params": None,
            "arrival_time": 1.5e9,
            "lora_request": None,
            "cache_salt": None,
            "data_parallel_rank": None,
        }
        | fields
    )


def children(num: int, **sampling: Any) -> list[Any]:
    """The requests that vLLM makes of one request with `n` answers."""
    whole = request("whole", sampling={"n": num, **sampling})
    whole.external_req_id = "whole"
    parent = ParentRequest(whole)
    made = []
    for index in range(num):
        request_id, params = parent.get_child_info(index)
        made.append(request(request_id, sampling_params=params))
    return made


SAMPLING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bounds": {"max_tokens": 7, "min_tokens": 3, "ignore_eos": True, "stop": ["x"]},
    "no bound": {"max_tokens": None, "stop_token_ids": [300, 9000], "bad_words": ["river"]},
    "a seed": {"seed": 17, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "logit_bias": {5: 1.0}},
    "logprobs": {"logprobs": 5, "prompt_logprobs": 2, "allowed_token_ids": [5, 6]},
    "logprobs of tokens": {"logprob_token_ids": [1, 2, 3]},
    "a scored prompt": {"prompt_logprob_token_ids": np.arange(400, dtype=np.int64).reshape(40, 10)},
    "a structure": {"structured_outputs": StructuredOutputsParams(json={"type": "object"})},
}
REQUESTS = {
    **{name: functools.partial(request, sampling=asked) for name, asked in SAMPLING.items()},
    "salt and priority": lambda: request(cache_salt="tenant-7", priority=-3),
    "fields behind ours": lambda: request(
        trace_headers={"traceparent": "00-ab-cd-01"},
        external_req_id="e",
        reasoning_ended=True,
        session_id="s",
        abort_immediately=True,
    ),
    "last child with a seed": lambda: children(3, seed=5)[2],
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_arrives_as_it_was_sent(name: str) -> None:
    sent = REQUESTS[name]()
    frames = MsgpackEncoder().encode(sent)
    found = wire.decode_request([memoryview(bytes(frame)) for frame in frames])
    for field in found.__struct_fields__:
        if field not in ("sampling_params", "pooling_params"):
            assert getattr(found, field) == getattr(sent, field), field
    assert found.sampling_params is not None
    for field in msgspec.structs.fields(wire.SamplingParams):
        expected = getattr(sent.sampling_params, field.encode_name)
        seen = getattr(found.sampling_params, field.name)
        if field.type is Any:
            assert (seen is None) == (expected is None), field.name
        else:
            assert (seen or None) == (expected or None), field.name
            assert (seen is None) <= (not expected), f"{field.name}: lost"


def test_what_is_no_text_request_is_seen() -> None:
    import torch
    from vllm import PoolingParams

    pooling = request()
    pooling.sampling_params, pooling.pooling_params = None, PoolingParams(task="embed")
    embeds = request(prompt_token_ids=None, prompt_embeds=torch.zeros(30, 256))
    for sent in (pooling, embeds):
        found = wire.decode_request(MsgpackEncoder().encode(sent))
        assert (found.sampling_params is None) == (sent.sampling_params is None)
        assert (found.pooling_params is None) == (sent.pooling_params is None)
        assert (found.prompt_embeds is None) == (sent.prompt_embeds is None)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (wire.Request, vllm_engine.EngineCoreRequest),
        (wire.Output, vllm_engine.EngineCoreOutput),
        (wire.Outputs, vllm_engine.EngineCoreOutputs),
    ],
)
def test_positions_are_vllm_s(ours: Any, theirs: Any) -> None:
    assert theirs.__struct_config__.array_like
    assert ours.__struct_config__.array_like
    names = ours.__struct_fields__
    assert theirs.__struct_fields__[: len(names)] == names


def test_names_are_vllm_s() -> None:
    theirs = {f.encode_name: f for f in msgspec.structs.fields(SamplingParams)}
    for field in msgspec.structs.fields(wire.SamplingParams):
        assert field.default == theirs[field.encode_name].default, field.name
    for ours, name in (
        (wire.PrefillStats, "PrefillStats"),
        (wire.SchedulerStats, "SchedulerStats"),
    ):
        known = getattr(vllm_stats, name).__dataclass_fields__
        assert set(ours.__struct_fields__) <= set(known)
    assert wire.RequestEvent.__struct_fields__ == vllm_engine.EngineCoreEvent.__struct_fields__
    assert not vllm_engine.EngineCoreEvent.__struct_config__.array_like


def test_numbers_are_vllm_s() -> None:
    for number, name in enumerate(wire.FINISH_REASONS):
        assert str(vllm_engine.FinishReason(number)) == name
    kinds = vllm_engine.EngineCoreEventType
    assert (kinds.QUEUED, kinds.SCHEDULED, kinds.PREEMPTED) == (
        wire.QUEUED,
        wire.SCHEDULED,
        wire.PREEMPTED,
    )


def test_outputs_arrive_as_they_were_sent() -> None:
    sent = wire.Outputs(
        outputs=[
            wire.Output(
                "r-1",
                [300, 301],
                events=[wire.RequestEvent(wire.SCHEDULED, 2.5)],
                prefill_stats=wire.PrefillStats(40, 8, 32, 32),
            ),
            wire.Output("r-2", [304], finish_reason=0, stop_reason=304),
        ],
        scheduler_stats=wire.SchedulerStats(3, 2, 0.25),
        timestamp=17.25,
    )
    frames = [memoryview(bytes(frame)) for frame in wire.encode_outputs(sent)]
    output = vllm_engine.EngineCoreOutput
    event = vllm_engine.EngineCoreEvent(vllm_engine.EngineCoreEventType.SCHEDULED, 2.5)
    prefill, stop = vllm_stats.PrefillStats(40, 8, 32, 32), vllm_engine.FinishReason.STOP
    stats = vllm_stats.SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.25)
    assert MsgpackDecoder(EngineCoreOutputs).decode(frames) == EngineCoreOutputs(
        outputs=[
            output("r-1", [300, 301], events=[event], prefill_stats=prefill),
            output("r-2", [304], finish_reason=stop, stop_reason=304),
        ],
        scheduler_stats=stats,
        timestamp=17.25,
    )


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode("x")])
def test_what_is_no_request_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="not a request of the vLLM"):
        wire.decode_request([frame])
