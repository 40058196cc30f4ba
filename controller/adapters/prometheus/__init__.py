"""Metrics in Prometheus's format: the controller's page, and the frontends' own beside vLLM's.

A scrape of several frontends that listen on one port reaches any one of them, and on a kept
connection always the same one, so each must answer for all. prometheus_client's multiprocess mode
does that through files in a folder.
"""

import os
import sys
from pathlib import Path


def share(folder: Path) -> None:
    """Counts together with every process that names the same folder.

    The folder must be new for each run of a cluster, as figures found in it are counted in.
    Figures of a process that died stay, as they should. Metrics about the process itself
    (`process_*`) are not served in this mode.

    Raises RuntimeError if prometheus_client was imported before: its import chooses the mode.
    """
    if "prometheus_client" in sys.modules:
        raise RuntimeError("prometheus_client was imported before metrics could be shared")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
