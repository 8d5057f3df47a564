"""Metrics of several processes in one text of Prometheus' format."""

from collections.abc import Iterable, Mapping

from prometheus_client import REGISTRY, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

_OF_EVERY_PROCESS = ("process_", "python_")


def exposition(families: Iterable[Metric]) -> bytes:
    """Return the text of these families."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


def with_children(texts: Mapping[str, str]) -> bytes:
    """Return the text of this process's metrics and of its children's; `texts` holds each child's text by its name.

    A counter or histogram is the sum over all processes that have it; a gauge is this process's own, or else that of
    the first child that has it. Resources that a child uses, such as memory, have the label `process` with its name.
    """
    families = {family.name: _copied(family, family.samples) for family in REGISTRY.collect()}
    for name, text in texts.items():
        for family in text_string_to_metric_families(text):
            target = families.setdefault(family.name, _copied(family, ()))
            if family.name.startswith(_OF_EVERY_PROCESS):
                labels = {"process": name}
                target.samples += [sample._replace(labels={**sample.labels, **labels}) for sample in family.samples]
            else:
                target.samples = _combined(target, family)
    return exposition(families.values())


def _copied(family: Metric, samples: Iterable[Sample]) -> Metric:
    copied = Metric(family.name, family.documentation, family.type)
    copied.samples = list(samples)
    return copied


def _combined(own: Metric, other: Metric) -> list[Sample]:
    samples = {_key(sample): sample for sample in own.samples}
    for sample in other.samples:
        mine = samples.setdefault(_key(sample), sample)
        if mine is not sample and own.type != "gauge":
            samples[_key(sample)] = mine._replace(value=mine.value + sample.value)
    return list(samples.values())


def _key(sample: Sample) -> tuple[object, ...]:
    return (sample.name, *sorted(sample.labels.items()))


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
