"""Environment that must be in place before vLLM is imported."""

import os

ENVIRONMENT = {
    # Keeps the CPU platform from turning the in-process executor into a subprocess
    # (vllm/platforms/cpu.py, check_and_update_config).
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # A library of vLLM's server puts this level on the root logger, ERROR if it is not set:
    # all that we log in a frontend would be gone.
    "SAGEMAKER_CONTAINER_LOG_LEVEL": "INFO",
    # Of compiled grammars that no request runs under any more, 512 by default. One has at most 32
    # (grammars/trials.py); that of a tool's schema and a vocabulary of 128,000 has 0.1.
    "VLLM_XGRAMMAR_CACHE_MB": "64",
    # Would let vLLM put pickles into what frontends and instances send each other.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": None,
    # These open vLLM's development routes, load adapters by request, or ask for a key of their own.
    "VLLM_SERVER_DEV_MODE": None,
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": None,
    "VLLM_API_KEY": None,
    # These write prompts and answers into logs.
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": None,
    "VLLM_LOGGING_CONFIG_PATH": None,
    # Would take kv_cache_memory_bytes's place (whole GiB only).
    "VLLM_CPU_KVCACHE_SPACE": None,
}

DEFAULTS = {
    # The second model runner, which vLLM prefers on GPUs, learns a request's tokens at its
    # admission only; a request that moves is not admitted again (docs/decisions/0009). Whoever
    # sets 1 gets it, and requests that say they cannot move.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


# At these vLLM writes prompts and answers.
TALKATIVE_LEVELS = ("DEBUG", "NOTSET")


def prepare() -> None:
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in TALKATIVE_LEVELS:
        os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    for key, default in DEFAULTS.items():
        os.environ.setdefault(key, default)
    for key, value in ENVIRONMENT.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
