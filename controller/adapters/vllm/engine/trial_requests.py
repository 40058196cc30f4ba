"""Requests that nobody asked for, to measure an engine with: greedy, with random prompts, never
ended by a token."""

import random
import time

from controller.ports.engine import Frames

MAX_TOKEN_ID = 2048
"""Large vocabularies have their special tokens at the end; an image's token would need an image."""


class TrialRequests:
    """Call it with an id, a number of prompt tokens, and the largest number of outputs."""

    def __init__(self, vocab_size: int) -> None:
        from vllm.v1.serial_utils import MsgpackEncoder

        self._token_ids = range(1, max(2, min(vocab_size, MAX_TOKEN_ID)))
        self._encoder = MsgpackEncoder()
        self._dice = random.Random(0)

    def __call__(self, request_id: str, num_prompt_tokens: int, max_tokens: int) -> Frames:
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        frames: Frames = self._encoder.encode(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=self._dice.choices(self._token_ids, k=num_prompt_tokens),
                mm_features=None,
                sampling_params=SamplingParams(
                    temperature=0.0, max_tokens=max_tokens, ignore_eos=True
                ),
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )
        return frames
