"""The metrics of a process and of its child in one text."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.process import metrics
from services.process.metrics import with_children


def of_child() -> str:
    """Return the metrics of another process: the service's, as they are after some work."""
    registry = CollectorRegistry()
    Counter("carillon_background_failures_total", "h", registry=registry).inc(2)
    Gauge("carillon_data_free_bytes", "h", registry=registry)
    Counter("carillon_analytics_rows_inserted_total", "h", ["table"], registry=registry).labels("only_child").inc(5)
    seconds = Histogram("carillon_rpc_seconds", "h", ["method"], buckets=(1, 5), registry=registry)
    seconds.labels("/of/child").observe(3)
    Gauge("process_resident_memory_bytes", "h", registry=registry).set(7)
    return generate_latest(registry).decode()


def test_the_text_has_each_series_once_and_sums_what_both_count() -> None:
    metrics.BACKGROUND_FAILURES.inc()
    metrics.DATA_FREE.set_function(lambda: 100)
    before = metrics.BACKGROUND_FAILURES._value.get()
    for _ in range(2):
        text = with_children({"analytics": of_child()}).decode()
    lines = text.splitlines()
    series = [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert len([line for line in lines if line.startswith("# TYPE carillon_rpc_seconds ")]) == 1
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["carillon_background_failures_total",] == before + 2
    assert values["carillon_data_free_bytes",] == 100
    assert values["carillon_analytics_rows_inserted_total", "only_child"] == 5
    assert values["carillon_rpc_seconds_count", "/of/child"] == 1
    assert values["process_resident_memory_bytes", "analytics"] == 7
    assert values["process_resident_memory_bytes",] > 7


def test_without_an_answer_of_the_child_the_text_is_its_own() -> None:
    assert with_children({"analytics": ""}).decode().count("# TYPE carillon_rpc_seconds ") == 1
