"""Every documented answer of every push service: its reaction, its line in the audit, and its metric."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from analytics.audit.timeline import of_outcome
from analytics.store.columns import enum_name
from console.shell.languages import Language, Languages
from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.registry.v1.apps_pb2 import (
    CHANNEL_APNS,
    CHANNEL_FCM,
    CHANNEL_HARMONY,
    CHANNEL_HMS,
    CHANNEL_HONOR,
    CHANNEL_OPPO,
    CHANNEL_VIVO,
    CHANNEL_WEBPUSH,
    CHANNEL_XIAOMI,
    Channel,
)
from services.delivery.channels import (
    ClaimAnswer,
    Reaction,
    Recipient,
    RecordFailed,
    RecordSent,
    RemoveAddress,
    ResendOnce,
    RetryHistory,
    RetryLater,
    Step,
)
from services.delivery.channels.apns import responses as apns
from services.delivery.channels.apns.request import ApnsResult
from services.delivery.channels.batches import answers as coded
from services.delivery.channels.fcm import responses as fcm
from services.delivery.channels.harmony import responses as harmony
from services.delivery.channels.hms import responses as hms
from services.delivery.channels.honor import responses as honor
from services.delivery.channels.oppo import responses as oppo
from services.delivery.channels.vivo import responses as vivo
from services.delivery.channels.webpush import responses as webpush
from services.delivery.channels.xiaomi import responses as xiaomi
from services.delivery.handing_over import last_outcome
from services.domain.addresses import service_name
from services.domain.channel_credentials.forms import FORMS
from services.domain.recorded_reasons import FixedReason
from testkit.waiting import run_ready_tasks
from tests.services.delivery.channels.test_service_channel import Harness, Toy, ToyAnswer, running

SENT, FAILED = OutcomeKind.OUTCOME_KIND_SENT, OutcomeKind.OUTCOME_KIND_FAILED
HANDED_OVER, RETURNED = OutcomeKind.OUTCOME_KIND_HANDED_OVER, OutcomeKind.OUTCOME_KIND_RETURNED
EXPIRED = OutcomeKind.OUTCOME_KIND_EXPIRED
PERIOD_S = 60
OURS = re.compile(r"(?:errno |code |status )?-?\d+ .+")
"""A number of a service with words of ours."""

CHINESE = re.compile(r"[\u4e00-\u9fff]")
LANGUAGES = Languages()


class Table(NamedTuple):
    """A service's documented answers, what follows from one, and its label in metrics."""

    answers: Sequence[Any]
    react: Callable[[Any, RetryHistory], Reaction]
    label: Callable[[Any], str]


def coded_table(answer: type[coded.CodedAnswer], codes: Iterable[str]) -> Table:
    answers = [*(answer(200, code) for code in codes), answer(coded.UNKNOWN, why="no answer within 10 s")]
    return Table(answers, coded.react, lambda each: each.label)


TABLES: Mapping["Channel.ValueType", Table] = {
    CHANNEL_APNS: Table(
        [ApnsResult(200), *(ApnsResult(*key) for key in apns.HANDLINGS), ApnsResult(0, "no answer within 10 s")],
        lambda answer, history: apns.react(answer, history, True, RecordFailed),
        apns.label,
    ),
    CHANNEL_WEBPUSH: Table(
        [
            *(webpush.WebPushAnswer(201), webpush.WebPushAnswer(webpush.UNKNOWN, "no answer within 10 s")),
            *(webpush.WebPushAnswer(*key) for key in webpush.HANDLINGS),
        ],
        lambda answer, history: webpush.react(answer, history, lambda: Reaction(RetryLater())),
        webpush.label,
    ),
    CHANNEL_FCM: Table(
        [
            *(fcm.FcmAnswer(200), fcm.FcmAnswer(fcm.UNKNOWN, "no answer within 10 s")),
            *(fcm.FcmAnswer(*key) for key in fcm.HANDLINGS),
            fcm.FcmAnswer(400, "INVALID_ARGUMENT", fcm.BAD_ADDRESS),
        ],
        fcm.react,
        fcm.label,
    ),
    CHANNEL_HMS: coded_table(hms.HmsAnswer, hms.CODES),
    CHANNEL_HARMONY: coded_table(harmony.HarmonyAnswer, harmony.CODES),
    CHANNEL_HONOR: coded_table(honor.HonorAnswer, honor.CODES),
    CHANNEL_XIAOMI: coded_table(xiaomi.XiaomiAnswer, xiaomi.CODES),
    CHANNEL_OPPO: coded_table(oppo.OppoAnswer, oppo.CODES),
    CHANNEL_VIVO: coded_table(vivo.VivoAnswer, vivo.CODES),
}


class ScriptedService(Toy):
    """A push service whose reactions are those of a table."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self._table = table

    def react(
        self, answer: ToyAnswer, history: RetryHistory, recipient: Recipient, credentials: str | None
    ) -> Reaction:
        return self._table.react(answer, history)


async def outcome(channel: "Channel.ValueType", table: Table, answer: Any) -> tuple[int, str]:
    """Return the last outcome of a message whose every request is answered so, and its reason."""
    service = ScriptedService(table)
    async with running(Harness(channel, service)) as harness:
        await (harness.start(1, PERIOD_S) if channel == CHANNEL_APNS else harness.hand_over(0, period_s=PERIOD_S))
        for _ in range(0, 2 * PERIOD_S, 5):  # an app that is stopped when the push expires is looked at later
            while service.pending:
                request = service.pending.pop()
                request.answered(answer) if request.is_wanted() else request.skipped()
                await run_ready_tasks()
            await harness.move(5)
        for _, kind, reason, _ in harness.outcomes:
            return kind, reason
        for number, name, reason in harness.claims[-1:]:
            return last_outcome(ClaimAnswer[name], reason, is_uncertain=number in harness.uncertain)
    raise AssertionError(f"nothing is recorded after {answer}")


def last_step(table: Table, answer: Any) -> Step:
    """Return the step that follows once no variant of the request is left."""
    history = RetryHistory()
    while isinstance(step := table.react(answer, history).step, ResendOnce):
        history = history.apply(step, answer.reason)
    return step


def expected_kind(channel: "Channel.ValueType", step: Step) -> int:
    if isinstance(step, RecordSent):
        return SENT if channel == CHANNEL_APNS else HANDED_OVER
    if isinstance(step, RetryLater) and step.is_unknown:
        return FAILED
    if channel != CHANNEL_APNS:
        return RETURNED
    return FAILED if isinstance(step, RecordFailed | RemoveAddress) else EXPIRED


def line(language: Language, channel: "Channel.ValueType", kind: int, reason: str) -> str:
    """Return the audit's line about an outcome on a device."""
    name, is_ios = enum_name(OutcomeKind.DESCRIPTOR, kind, "OUTCOME_KIND_"), channel == CHANNEL_APNS
    via = "" if is_ios else service_name(channel)
    return language.details.line(of_outcome(name, 1, 7, reason, via, simulated=False, is_ios=is_ios), str)


def test_every_channel_has_a_table() -> None:
    assert TABLES.keys() == {CHANNEL_APNS, *FORMS}


@pytest.mark.parametrize("channel", TABLES, ids=service_name)
async def test_each_answer_ends_in_an_outcome_whose_line_in_the_audit_names_the_service_and_the_answer(
    channel: "Channel.ValueType",
) -> None:
    table = TABLES[channel]
    lines: dict[str, list[str]] = {language.tag: [] for language in LANGUAGES.all()}
    for answer in table.answers:
        kind, reason = await outcome(channel, table, answer)
        assert kind == expected_kind(channel, last_step(table, answer)), answer
        for language in LANGUAGES.all():
            told = line(language, channel, kind, reason)
            assert language.service(service_name(channel)) in told
            assert language.reason(answer.reason) in told
            is_ours = answer.reason in set(FixedReason) or OURS.fullmatch(answer.reason)
            if language.tag == "zh" and is_ours and not isinstance(last_step(table, answer), RecordSent):
                assert CHINESE.search(language.reason(reason)), answer
            lines[language.tag].append(told)
    assert {tag: len(of_language) - len(set(of_language)) for tag, of_language in lines.items()} == {"en": 0, "zh": 0}


@pytest.mark.parametrize("channel", TABLES, ids=service_name)
def test_each_answer_has_a_metric_of_its_own(channel: "Channel.ValueType") -> None:
    labels = [TABLES[channel].label(answer) for answer in TABLES[channel].answers]
    assert all(labels)
    assert len(set(labels)) == len(labels)
