"""Environment that must be in place before vLLM is imported."""

import os

ENVIRONMENT = {
    # Keeps the CPU platform from turning the in-process executor into a subprocess
    # (vllm/platforms/cpu.py, check_and_update_config).
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # A library of vLLM's server sets the root logger to this level, by default ERROR, which would
    # silence llumctl's own log in a frontend.
    "SAGEMAKER_CONTAINER_LOG_LEVEL": "INFO",
    # Memory for compiled grammars that no request uses any more; vLLM's default is 512. One
    # grammar has at most 32 (grammars/trials.py), and 0.1 for a tool's schema and a vocabulary of
    # 128,000.
    "VLLM_XGRAMMAR_CACHE_MB": "64",
    # This would let vLLM put pickles into messages between frontends and instances.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": None,
    # These open vLLM's development routes, load adapters by request, or ask for a key of their own.
    "VLLM_SERVER_DEV_MODE": None,
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": None,
    "VLLM_API_KEY": None,
    # These write prompts and answers into logs.
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": None,
    "VLLM_LOGGING_CONFIG_PATH": None,
    # This would override kv_cache_memory_bytes, in whole GiB only.
    "VLLM_CPU_KVCACHE_SPACE": None,
}

DEFAULTS = {
    # The second model runner, which vLLM prefers on GPUs, learns a request's tokens at its
    # admission only; a request that moves is not admitted again (docs/decisions/0009). A user may
    # set 1, and then no request can move.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


# At these levels vLLM writes prompts and answers into its log.
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
