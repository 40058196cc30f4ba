"""What the installed vLLM declares of its engine arguments and its parsers; without vLLM, what the
newest supported one declares.

Each minor version that llumctl runs on has a module here, which `make vllm-arguments` writes. This
module is short because it only picks one of them.
"""

from controller.main.checks.preflight import DISTRIBUTIONS, installed
from controller.main.checks.vllm_arguments import v0_32, v0_33


def module_name(version: str) -> str:
    """The module of a version of vLLM: v0_32 for 0.32.0."""
    return "v" + "_".join(version.split(".")[:2])


_BY_NAME = {"v0_32": v0_32, "v0_33": v0_33}
_version = next(filter(None, map(installed, DISTRIBUTIONS)), "")
_declared = _BY_NAME.get(module_name(_version), v0_33)

ARGUMENTS = _declared.ARGUMENTS
TOOL_PARSERS = _declared.TOOL_PARSERS
REASONING_PARSERS = _declared.REASONING_PARSERS
