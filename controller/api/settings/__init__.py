"""The settings of a cluster: their tables, vLLM's options among them, and their values as people
write and read them.

This file has the bounds and names that hold for every cluster. It imports next to nothing, so that
a command line can be checked before anything is loaded.
"""

from controller.core.bounds import ADAPTER_NAME as ADAPTER_NAME
from controller.core.bounds import MAX_INSTANCES as MAX_INSTANCES
from controller.core.bounds import PYTHON as PYTHON
from controller.core.bounds import without_python as without_python

MAX_DEADLINE_S = 7 * 86400.0
MAX_WARM_S = 3600.0
"""The longest deadline of a drain."""
MAX_REASON_CHARS = 200
