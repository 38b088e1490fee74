"""Metrics for `/metrics`: requests by kind and status, their times, bytes in and out.

Several worker processes add up through prometheus-client's own files, in a folder that the process
which starts them names in PROMETHEUS_MULTIPROC_DIR before this module is imported.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one process."""

    def __init__(self, *, shared: bool = False) -> None:
        """shared: whether other worker processes count too, into the folder that PROMETHEUS_MULTIPROC_DIR names."""
        self._shared = shared
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "kernels_hub_requests",
            "Requests answered",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self.seconds = Histogram(
            "kernels_hub_request_seconds",
            "Time until an answer was sent",
            ("route",),
            registry=self._registry,
        )
        self.sent = Counter("kernels_hub_sent_bytes", "Bytes of answers", registry=self._registry)
        self.received = Counter("kernels_hub_received_bytes", "Bytes of requests", registry=self._registry)
        self.refused = Counter(
            "kernels_hub_rate_limited", "Requests refused by the rate limit", registry=self._registry
        )

    def text(self) -> bytes:
        """Everything, over all worker processes, in Prometheus' text format."""
        if not self._shared:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        # prometheus-client carries no hints here.
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
