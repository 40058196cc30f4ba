"""vLLM's own metrics of several models in one process.

vLLM's logger makes its metrics anew, and takes those of an earlier logger off the registry: one
process of vLLM serves one model. Here the loggers of all models share their metrics, whose label
`model_name` tells the models apart. The buckets of a histogram are those of the first model.

Touch points of vLLM: v1/metrics/loggers.py `PrometheusStatLogger`, `_gauge_cls`;
v1/spec_decode/metrics.py `SpecDecodingProm`; v1/metrics/perf.py `PerfMetricsProm`;
v1/metrics/prometheus.py `unregister_vllm_metrics`."""

from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.perf import PerfMetricsProm
from vllm.v1.spec_decode.metrics import SpecDecodingProm

_made: dict[str, Any] = {}
"""The metrics of all models in this process, by name."""


def _shared(kind: Any) -> Callable[..., Any]:
    def make(name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in _made:
            _made[name] = kind(name, *args, **kwargs)
        return _made[name]

    return staticmethod(make)


class _SpecDecoding(SpecDecodingProm):  # type: ignore[misc]  # its base is Any to mypy
    _counter_cls = _shared(Counter)


class _PerfMetrics(PerfMetricsProm):  # type: ignore[misc]  # its base is Any to mypy
    _counter_cls = _shared(Counter)


class ModelStatLogger(PrometheusStatLogger):  # type: ignore[misc]  # its base is Any to mypy
    """The logger of one of several models."""

    _gauge_cls = _shared(Gauge)
    _counter_cls = _shared(Counter)
    _histogram_cls = _shared(Histogram)
    _spec_decoding_cls = _SpecDecoding
    _perf_metrics_cls = _PerfMetrics

    def __init__(self, vllm_config: VllmConfig, engine_indexes: list[int] | None = None) -> None:
        super().__init__(vllm_config, engine_indexes)
        registered = {name for each in REGISTRY.collect() for name in (each.name,)}
        for metric in _made.values():
            if metric._name not in registered:  # vLLM's constructor has taken it off
                REGISTRY.register(metric)
