"""The tokenizer: whole words where the vocabulary has them, single bytes everywhere else."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from controller.adapters.embedded_model.architecture import MAX_TOKENS
from controller.adapters.embedded_model.vocabulary import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    byte_symbol,
    vocabulary,
)


def tokenizer() -> Tokenizer:
    """A byte-level BPE without merges: a piece that is no token falls apart into bytes.

    Nothing is normalised and no token is added in front, so decoding what was encoded gives
    the same text, whatever it is.
    """
    names = [*SPECIAL_TOKENS]
    for token in vocabulary()[len(SPECIAL_TOKENS) :]:
        names.append("".join(byte_symbol(value) for value in token.data))
    ids = {name: index for index, name in enumerate(names)}
    result = Tokenizer(BPE(vocab=ids, merges=[], ignore_merges=True))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS]
    )
    return result


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_TOKENS,
    }
