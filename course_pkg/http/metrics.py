"""What an engine tells those who watch it, in Prometheus' text format."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
NOW = {
    "in the batch": "requests_running",
    "waiting": "requests_waiting",
    "blocks in use": "blocks_in_use",
    "blocks shared": "blocks_shared",
    "slots wasted": "slots_wasted",
}
SO_FAR = {
    "tokens found": "prefix_cache_hit_tokens",
    "preemptions": "preemptions",
    "swaps": "swaps",
}


class Metrics(Collector):
    """Counters of an engine, and of what its clients see.

    Attributes:
        registry: of all of them, for `prometheus_client.generate_latest`.
        first: the times to the first token, in seconds.
        gaps: the times from one token of a sequence to the next, in seconds.
        asked, added: how many tokens prompts had, and answers.
        ended: how many sequences have ended, by reason.
    """

    def __init__(self, engine: Any):
        self.engine, self.registry = engine, CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry, "namespace": "engine"}
        timed = named | {"unit": "seconds", "buckets": SECONDS}
        self.first = Histogram("time_to_first_token", "From a request to its first token.", **timed)
        self.gaps = Histogram("time_between_tokens", "From a token to the next.", **timed)
        self.asked = Counter("prompt_tokens", "Tokens of prompts.", **named)
        self.added = Counter("generated_tokens", "Tokens of answers.", **named)
        self.ended = Counter("sequences_ended", "Sequences that have ended.", ["reason"], **named)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Read the engine's own counters."""
        counters = self.engine.counters(len(self.engine.scheduler.running))
        for ours, theirs in NOW.items():
            yield GaugeMetricFamily(f"engine_{theirs}", ours, counters[ours])
        for ours, theirs in SO_FAR.items():
            yield CounterMetricFamily(f"engine_{theirs}", ours, counters[ours])
