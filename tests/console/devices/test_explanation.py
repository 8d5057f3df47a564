"""The sentence that explains a push on a device, and the funnel of a push."""

import pytest

from console.devices.explanation import ENDED, Words, explain
from console.pushes.view import Content, content, funnel, questions_behind
from console.shell.languages import Language, Languages, english
from protos.analytics.v1.analytics_pb2 import (
    AuditPushResponse,
    BroadcastRow,
    Clause,
    Exclusion,
    ExclusionReason,
    FoundValues,
    PushOnDevice,
    StateCount,
    TimelineEntry,
)
from protos.push.v1.push_pb2 import Attribute, AttributeClause, Filter
from protos.registry.v1.apps_pb2 import Pause

WORDS = Words(english(), str)
REGION = Clause(
    holds=False,
    filter=Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["北京市"])]),
    found_values=FoundValues(attribute="上海市"),
)


def entry(event: str, ms: int, reason: str = "") -> TimelineEntry:
    return TimelineEntry(first_ms=ms, last_ms=ms, event=event, count=1, msgid=7, reason=reason)


def in_audience(*entries: TimelineEntry) -> PushOnDevice:
    return PushOnDevice(in_audience=True, verdict="in the audience", timeline=[entry("audience", 1), *entries])


def not_in(reason: ExclusionReason.ValueType, *clauses: Clause) -> PushOnDevice:
    exclusion = Exclusion(reason=reason, partition=2, count=3, time_ms=4, recorded_reason="idle")
    return PushOnDevice(clauses=clauses, exclusion=exclusion)


@pytest.mark.parametrize(
    ("device", "sentence", "kind"),
    [
        (
            not_in(ExclusionReason.EXCLUSION_REASON_CLAUSES, Clause(text='stag "a"', holds=True), REGION),
            "Not in the audience: the push was for region in 北京市, and the device had region 上海市.",
            "bad",
        ),
        (
            not_in(ExclusionReason.EXCLUSION_REASON_NOT_LISTED),
            "Not in the audience: the push has a list of 3 targets, and the device is not in it.",
            "bad",
        ),
        (in_audience(), "Waiting: the device has been in the audience since 1, and gets the push when it", "warn"),
        (in_audience(entry("sent", 2)), "Sent at 2, but not acknowledged: the connection was", "warn"),
        (
            in_audience(entry("sent", 2), entry("received", 3), entry("finished", 9)),
            "Received at 3; the device has not reported that it showed the push.",
            "good",
        ),
        (
            in_audience(entry("received", 3), entry("shown", 4), entry("clicked", 5)),
            "Received at 3, clicked at 5.",
            "good",
        ),
        (in_audience(entry("received", 3), entry("shown", 4)), "Received at 3, shown at 4.", "good"),
        (
            in_audience(entry("dropped", 3, "mailbox full")),
            "Dropped at 3: more than 100 messages were waiting.",
            "bad",
        ),
        (
            in_audience(entry("dropped", 3, "alias changed")),
            "Dropped at 3: the device had changed its alias by then.",
            "bad",
        ),
        (in_audience(entry("sent", 2), entry("dropped", 3, "alias changed"), entry("received", 4)), "Received", "good"),
        (in_audience(entry("sent", 2), entry("failed", 3)), "Failed at 3: no reason is recorded.", "bad"),
        (
            in_audience(entry("sent", 2), entry("push cancelled", 3)),
            "Cancelled at 3, before the device had received the push.",
            "bad",
        ),
        (
            in_audience(entry("claimed", 3), entry("handed_over", 4), entry("finished", 9)),
            "Handed over at 4 to the push service that reaches the device without a connection.",
            "good",
        ),
        (in_audience(entry("handed_over", 4), entry("received", 5)), "Received at 5; the device", "good"),
        (
            in_audience(entry("sent", 2), entry("claimed", 3)),
            "The push service that reaches the device was asked at 3, and has not answered yet.",
            "warn",
        ),
        (in_audience(entry("claimed", 3), entry("returned", 4, "BadToken")), "Waiting: the device has been in", "warn"),
        (
            in_audience(entry("claimed", 3), entry("failed", 4, "unknown whether the channel shows it: Quota")),
            "Failed at 4: it is unknown whether the device shows it: the push service first did not answer, then: ",
            "bad",
        ),
        (in_audience(entry("finished", 9)), "Expired at 9, before the device had received the push.", "bad"),
        (
            in_audience(entry("expired", 8, "refused until it expired: ServiceUnavailable"), entry("finished", 9)),
            "Expired at 8: Apple had it sent again later until it expired: ServiceUnavailable.",
            "bad",
        ),
        (in_audience(entry("expired", 9), entry("received", 10)), "Received at 10; the device", "good"),
    ],
)
def test_one_sentence_names_the_clause_or_the_reason(device: PushOnDevice, sentence: str, kind: str) -> None:
    explanation = explain(device, WORDS)
    assert explanation.sentence.startswith(sentence)
    assert explanation.kind == kind


@pytest.mark.parametrize("language", Languages().all(), ids=lambda language: language.tag)
def test_each_reason_of_an_exclusion_has_a_text_with_its_numbers(language: Language) -> None:
    words = Words(language, lambda ms: f"T{ms}")
    unspecified, *reasons = ExclusionReason.values()
    texts = {
        reason: explain(not_in(reason), words).sentence
        for reason in reasons
        if reason != ExclusionReason.EXCLUSION_REASON_CLAUSES
    }
    unexplained = explain(not_in(unspecified), words).sentence
    assert len({unexplained, *texts.values()}) == len(texts) + 1
    for reason, shown in (
        (ExclusionReason.EXCLUSION_REASON_PUSH_NOT_STARTED, ["2"]),
        (ExclusionReason.EXCLUSION_REASON_REGISTERED_LATER, ["T4"]),
        (ExclusionReason.EXCLUSION_REASON_REMOVED, ["T4", language.reason("idle")]),
        (ExclusionReason.EXCLUSION_REASON_RECORD_LACKS_CHANGES, ["3"]),
    ):
        assert all(part in texts[reason] for part in shown)


def test_a_reason_counts_one_target_or_one_change() -> None:
    for reason, told in (
        (ExclusionReason.EXCLUSION_REASON_NOT_LISTED, "the push has a list of 1 target, and"),
        (ExclusionReason.EXCLUSION_REASON_RECORD_LACKS_CHANGES, "the device was changed 1 time shortly"),
    ):
        device = not_in(reason)
        device.exclusion.count = 1
        assert told in explain(device, WORDS).sentence


def test_a_push_that_waits_for_the_end_of_a_pause_says_so() -> None:
    for reason, told in (("night", "night"), ("", "no reason is recorded")):
        pause = Pause(since_ms=5, reason=reason)
        explanation = explain(in_audience(), WORDS, pause=pause)
        assert explanation == (f"Waiting: sending has been paused since 5 ({told}).", "warn")
        assert explain(in_audience(entry("received", 3)), WORDS, pause=pause).kind == "good"


def test_a_device_that_acknowledges_nothing_got_what_apple_accepted() -> None:
    device = in_audience(entry("sent", 2), entry("finished", 9))
    explanation = explain(device, WORDS, is_ios=True)
    assert (explanation.sentence.startswith("Apple accepted the push for the device at 2"), explanation.kind) == (
        True,
        "good",
    )
    assert explain(device, WORDS).kind == "bad"


def test_a_simulator_is_never_shown_as_the_vendor() -> None:
    """Also after real credentials were set: the outcome itself tells."""
    sent = entry("sent", 2)
    sent.channel, sent.simulated = "apns", True
    told = explain(in_audience(sent), WORDS, is_ios=True).sentence
    assert told.startswith("The simulator of Apple's push service accepted the push for the device at 2.")
    taken = entry("handed_over", 4)
    taken.channel, taken.simulated = "webpush", True
    told = explain(in_audience(taken), WORDS).sentence
    assert told.startswith("The simulator of Web Push accepted the push for the device at 4.")
    taken.simulated = False
    told = explain(in_audience(taken), WORDS).sentence
    none = "No receipt: this service sends none, and the app has not reported the message."
    assert told == f"Handed over at 4 to Web Push. {none}"
    taken.channel = "fcm"
    told = explain(in_audience(taken), WORDS).sentence
    assert told == f"Handed over at 4 to Google's push service (FCM). {none}"
    taken.channel = "hms"
    told = explain(in_audience(taken), WORDS).sentence
    assert told.endswith("on Android. No receipt yet, and the app has not reported the message.")
    failed = entry("failed", 3, "BadDeviceToken")
    failed.channel, failed.simulated = "apns", True
    told = explain(in_audience(failed), WORDS, is_ios=True).sentence
    assert told == "Failed at 3: BadDeviceToken. The simulator of Apple's push service answered."
    failed.reason = "unknown: connection lost"
    told = explain(in_audience(failed), WORDS, is_ios=True).sentence
    assert told.endswith("connection lost. The simulator of Apple's push service was asked.")
    failed.reason = "removed"
    assert "simulator" not in explain(in_audience(failed), WORDS, is_ios=True).sentence
    claimed = entry("claimed", 3)
    claimed.channel, claimed.simulated = "webpush", True
    told = explain(in_audience(claimed), WORDS).sentence
    assert told.endswith("and has not answered yet. The simulator of Web Push was asked.")


def test_what_an_iphone_reports_comes_before_what_apple_said() -> None:
    device = in_audience(entry("sent", 2), entry("received", 3), entry("shown", 3), entry("clicked", 8))
    explanation = explain(device, WORDS, is_ios=True)
    assert explanation == ("Received at 3, clicked at 8.", "good")


def test_a_funnel_counts_devices_that_came_at_least_so_far() -> None:
    states = {"pending": 1, "sent": 2, "received": 4, "shown": 8, "clicked": 16, "failed": 32}
    answer = AuditPushResponse(
        audience_count=63, states=[StateCount(state=state, devices=devices) for state, devices in states.items()]
    )
    assert [step.devices for step in funnel(answer, None)] == [63, 30, 28, 24, 16]
    row = BroadcastRow(target=63, sent=62, received=28, shown=24, clicked=16)
    assert [step.devices for step in funnel(answer, row)] == [63, 62, 28, 24, 16]


def test_each_number_of_a_push_leads_to_the_question_behind_it() -> None:
    numbers = {"accepted", "audience", "sent", "received", "shown", "clicked", *ENDED}
    by_region = "/statistics?appkey=1&kind=broadcasts&push=7&category=region"
    broadcast = questions_behind(AuditPushResponse(appkey="1", kind="broadcast"), 7)
    assert broadcast.keys() == numbers
    assert {path for event, path in broadcast.items() if event not in ENDED} == {by_region}
    assert {broadcast[event] for event in ENDED} == {"/apps/1/pushes/7/failures"}
    listed = questions_behind(AuditPushResponse(appkey="1", kind="unicast"), 7)
    assert listed.keys() == numbers - {"audience"}
    assert (listed["failed"], listed["sent"]) == ("/apps/1/pushes/7#states", "/apps/1/pushes/7/speed")


def test_the_content_of_any_interface_is_found() -> None:
    v2 = '{"msgStyle":{"basic":{"content":{"android":"a","ios":"b"}},"android":{"title":"T"}}}'
    assert content(v2) == Content("T", "a / b")
    assert content('{"message":"hello","title":"T"}') == Content("T", "hello")
    assert content('{"option":{"label":"spring"}}') == Content("", "", "spring")
    for odd in ("", "[]", "null", '{"msgStyle":[]}', '{"option":{"label":5}}', '{"message":5,"title":{}}', "{"):
        assert content(odd) == Content("", "")
