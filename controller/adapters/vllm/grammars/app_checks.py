"""Replaces vLLM's checks of structured outputs on a frontend's event loop by checks that take
little time.

vLLM converts every grammar there to see whether that works: for `[a-z]{1,10000}` in a JSON schema
this took 37.8 s, in which all streams stood still. Here this is left to a trial
(grammars/trials.py), which a request passes before it is sent to an instance. The checks that
remain take time in proportion to the request.

All engines use xgrammar (docs/decisions/0013): vLLM's engine keeps the backend of its first
request, and the trials use xgrammar.

Touch points of vLLM: v1/structured_output/backend_xgrammar.py `validate_xgrammar_grammar`,
`XgrammarBackend`, `compiler`, `has_xgrammar_unsupported_json_features`; sampling_params.py
`_validate_structured_outputs` and entrypoints/generate/base/protocol.py
`validate_structural_tag_payload`, which import the first of them when they are called;
v1/structured_output/request.py `get_structured_output_key`."""

import json
import logging
import os
from typing import Any

from vllm.config import VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams, StructuredOutputsParams, check_json_nesting
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.structured_output import backend_xgrammar
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.request import get_structured_output_key
from vllm.v1.structured_output.utils import choice_as_grammar, grammar_is_likely_lark

from controller.adapters.vllm.grammars.trials import Grammar, GrammarProcess, NoTries, Tries

log = logging.getLogger(__name__)

BACKEND = "xgrammar"
MAX_TRIAL_THREADS = 8
"""The limit that vLLM has for the threads of an engine's compiler."""


def install(config: VllmConfig) -> None:
    """Replaces vLLM's checks. Called once in a frontend's process."""
    config.structured_outputs_config.backend = BACKEND
    backend_xgrammar.validate_xgrammar_grammar = check_form


def check_form(params: SamplingParams) -> None:
    """Replaces vLLM's own function, and has the same effect on `params` without a fault. Raises
    VLLMValidationError."""
    wanted = params.structured_outputs
    if wanted is None:
        return
    if wanted.choice:
        wanted.grammar, wanted.choice = choice_as_grammar(wanted.choice), None
    elif wanted.json:
        check_json_nesting(wanted.json)
        schema = _loads(wanted.json, "Invalid JSON grammar specification.")
        try:
            unsupported = backend_xgrammar.has_xgrammar_unsupported_json_features(schema)
        except TypeError as error:  # values are looked up in sets: `"format": []`, `"type": [{}]`
            raise VLLMValidationError(
                f"The provided JSON schema has a value of a wrong type: {error}."
            ) from error
        if unsupported:
            raise VLLMValidationError(
                "The provided JSON schema contains features not supported by xgrammar."
            )
    elif wanted.structural_tag:
        check_json_nesting(wanted.structural_tag, structural_tag=True)
        if not isinstance(_loads(wanted.structural_tag, _BAD_TAG), dict):
            raise VLLMValidationError(_BAD_TAG)


def grammar_of(wanted: StructuredOutputsParams | None) -> Grammar | None:
    """The grammar that an engine will compile; None if there is none, or if it cannot be costly."""
    if wanted is None or wanted.all_constraints_none():
        return None
    option, text = get_structured_output_key(wanted)
    match option:
        case StructuredOutputOptions.JSON_OBJECT:
            return None
        case StructuredOutputOptions.GRAMMAR:
            return Grammar("lark" if grammar_is_likely_lark(text) else "ebnf", text)
        case _:
            return Grammar(option.name.lower(), text)


def make_process(config: VllmConfig) -> Tries:
    """Makes the process that tries grammars, without starting it. This takes 2 s for a vocabulary
    of 128,000."""
    try:
        tokenizer = cached_tokenizer_from_config(config.model_config)
        return GrammarProcess(_trial_setup(config, tokenizer))
    except Exception:  # xgrammar cannot use this tokenizer; all other requests can be served
        log.exception("no structured outputs with this model")
        return NoTries("xgrammar cannot take this model's tokenizer")


def _trial_setup(config: VllmConfig, tokenizer: Any) -> dict[str, Any]:
    """What the process needs to make the same compiler as an engine has."""
    backend = backend_xgrammar.XgrammarBackend(
        config, tokenizer=tokenizer, vocab_size=config.model_config.get_vocab_size()
    )
    knows = backend.compiler.compile_grammar('root ::= "a"').tokenizer_info
    return {
        "tokenizer": knows.serialize_json(),
        "disable_any_whitespace": backend.disable_any_whitespace,
        "num_threads": max(1, min(MAX_TRIAL_THREADS, (os.cpu_count() or 1) // 2)),
    }


_BAD_TAG = "Invalid structural tag specification."


def _loads(text: Any, message: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise VLLMValidationError(message) from error
