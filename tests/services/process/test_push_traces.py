"""Traces of pushes: the spans of a push, and the bounds of what a process keeps."""

from random import Random

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.process import push_traces


async def traced(ratio: float, msgids: range) -> list[ReadableSpan]:
    """Return the spans of these pushes, each of which two devices acknowledge."""
    exporter = InMemorySpanExporter()
    async with push_traces.exporting(exporter, ratio, Random(1)):
        for msgid in msgids:
            request = push_traces.begin_request()
            trace = push_traces.trace_of(request)
            with push_traces.appending(trace, msgid):
                pass
            push_traces.end_request(request, "POST /v2/push", {"carillon.result": 0})
            push_traces.read(trace, msgid)
            push_traces.started(msgid)
            push_traces.handed(push_traces.sent_trace(msgid), msgid, 2)
            push_traces.first_written([msgid])
            push_traces.acknowledged([msgid])
            push_traces.acknowledged([msgid])
    return list(exporter.get_finished_spans())


async def test_a_broadcast_has_one_span_for_all_devices_of_a_gateway() -> None:
    spans = await traced(1, range(1, 2))
    names = ["log append", "POST /v2/push", "delivery start", "gateway write", "device acknowledgement"]
    assert [span.name for span in spans] == names
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    by_id = {span.context.span_id: span.name for span in spans if span.context}
    parents = {span.name: by_id[span.parent.span_id] for span in spans if span.parent}
    assert parents == {
        "log append": "POST /v2/push",
        "delivery start": "POST /v2/push",
        "gateway write": "delivery start",
        "device acknowledgement": "gateway write",
    }


async def test_the_ratio_chooses_requests_and_whole_traces() -> None:
    spans = await traced(0.25, range(1, 401))
    assert 5 * 70 < len(spans) < 5 * 130
    assert len(spans) == 5 * len({span.context.trace_id for span in spans if span.context})
    assert await traced(0, range(1, 10)) == []


async def test_the_traces_that_a_process_keeps_are_bounded_and_forgotten_spans_end() -> None:
    exporter = InMemorySpanExporter()
    async with push_traces.exporting(exporter, 1):
        trace = push_traces.trace_of(push_traces.begin_request())
        for msgid in range(push_traces.MAX_PUSHES + 1):
            push_traces.read(trace, msgid)
        assert push_traces.sent_trace(0) == b""
        assert len(push_traces.sent_trace(1)) == 24
    (forgotten,) = exporter.get_finished_spans()
    assert (forgotten.attributes or {})["carillon.msgid"] == 0


async def test_without_a_collector_nothing_is_traced() -> None:
    async with push_traces.exporting(push_traces.otlp_exporter(None), 1):
        assert push_traces.begin_request() is None
        push_traces.read(b"t" * 24, 1)
        assert push_traces.sent_trace(1) == b""
