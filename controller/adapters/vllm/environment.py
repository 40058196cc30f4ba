"""The environment in which vLLM is imported, by instances and by frontends.

What the user has set reaches vLLM, unless it stands here. A contract test knows each variable that
vLLM's server reads, so that a version with a new one fails until it is decided whether it may.
"""

import logging
import os

log = logging.getLogger(__name__)

SET = {
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
}

_PROMPTS = "it writes prompts and answers into logs"
_ROUTES = "it opens routes to clients"
_ONE_FRONTEND = "it keeps clients' data in one frontend, without end, and other frontends lack it"
_NO_RANKS = "instances are no ranks of one deployment"
REMOVED = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "it lets members of the cluster send each other pickles",
    "VLLM_SERVER_DEV_MODE": _ROUTES,
    "VLLM_ENABLE_COHERE_API": _ROUTES,
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "it loads adapters that clients name",
    "VLLM_API_KEY": "keys stand in endpoint.api_key_file",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": _PROMPTS,
    "VLLM_LOGGING_CONFIG_PATH": _PROMPTS,
    # Any key could read the answers of another's.
    "VLLM_ENABLE_RESPONSES_API_STORE": _ONE_FRONTEND,
    "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": _ONE_FRONTEND,
    # One client could end or garble another's request by giving its own the same X-Request-Id.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "requests of two clients might have the same id",
    "VLLM_CPU_KVCACHE_SPACE": "engine.kv_cache_memory_bytes says it, not only in whole GiB",
    "VLLM_DP_RANK": _NO_RANKS,
    "VLLM_DP_RANK_LOCAL": _NO_RANKS,
    "VLLM_DP_SIZE": _NO_RANKS,
    "VLLM_DP_MASTER_IP": _NO_RANKS,
    "VLLM_DP_MASTER_PORT": _NO_RANKS,
    # Kubernetes sets it to an URL in the pods beside a service of the name vllm.
    "VLLM_PORT": "several instances on one machine cannot have the same port",
}
"""Name to why."""

DEFAULTS = {
    # The second model runner, which vLLM prefers on GPUs, learns a request's tokens at its
    # admission only; a request that moves is not admitted again (docs/decisions/0009). A user may
    # set 1, and then no request can move.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # By default vLLM binds rank n of every engine to the cores of the n-th NUMA node, two
    # instances to the same ones, and refuses to start on a CPU machine with fewer nodes than ranks.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


# At these levels vLLM writes prompts and answers into its log.
TALKATIVE_LEVELS = ("DEBUG", "NOTSET")


def prepare() -> None:
    """Must be called before vLLM is imported."""
    if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in TALKATIVE_LEVELS:
        os.environ["VLLM_LOGGING_LEVEL"] = "INFO"
    for key, why in REMOVED.items():
        if os.environ.pop(key, None) is not None:
            log.warning("%s of the environment does not count: %s", key, why)
    for key, default in DEFAULTS.items():
        os.environ.setdefault(key, default)
    os.environ.update(SET)
