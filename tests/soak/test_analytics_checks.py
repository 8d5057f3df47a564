"""Checks of the store name the outcomes as the store does."""

from pathlib import Path

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import TOPICS
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import app_outcomes, outcomes
from tests.soak.analytics_checks import StoredPushes, stored_violations
from tests.soak.history import DeviceNumber, History

MSGID, PARTITION, NUMBER = 7, 1, 3


async def test_what_an_alias_change_withdrew_is_dropped_in_the_store_too(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db", TOPICS)
    await log.append(
        [
            outcomes(
                PARTITION,
                app_outcomes(MSGID, [NUMBER], OutcomeKind.OUTCOME_KIND_DROPPED, reason=FixedReason.ALIAS_CHANGED),
            ),
            outcomes(PARTITION, app_outcomes(MSGID, [NUMBER], OutcomeKind.OUTCOME_KIND_RECEIVED), seed="receipt"),
        ]
    )
    history = History(log, partitions=8)
    await history.read()
    await history.close()
    assert history.withdrawn == {(MSGID, DeviceNumber(PARTITION, NUMBER))}
    assert history.concluded == {(MSGID, DeviceNumber(PARTITION, NUMBER)): 1}
    counted = [("dropped", MSGID, 1), ("received", MSGID, 1)]
    assert list(stored_violations(history, StoredPushes([], [], counted, counted))) == []
    violations = stored_violations(history, StoredPushes([], [], [("dropped", MSGID, 1)], counted))
    assert [each.text for each in violations] == ["outcomes ('received', 7): 0 in the store, 1 in the log"]
