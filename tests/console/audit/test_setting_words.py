"""Recorded settings of the audit in the reader's language."""

import pytest

from console.shell.languages import Languages
from protos.analytics.v1.analytics_pb2 import ActionEntry
from protos.analytics.v1.details_pb2 import Detail
from protos.registry.v1.apps_pb2 import APNS_ENVIRONMENT_SANDBOX, ROUTE_VENDOR, ApnsKey, App, Quotas
from services.registry.app_settings import secret_kept, settings_changed

OLD_SECRET_MS = 1_790_003_600_000

WORDS = [
    ("team created", ["News", "name News"], "News, Name: News", "News, 名称: News"),
    (
        "team set",
        ["News", "approval broadcasts, above 1500 devices"],
        "News, Approval by a second person: broadcasts, more than 1,500 devices",
        "News, 第二人审批: 广播, 超过 1,500 台设备",
    ),
    ("team member set", ["News viewer", "chen approver"], "News viewer, chen: approver", "News viewer, chen: 审批人"),
    ("team member removed", ["News", "zone"], "News, zone", "News, zone"),
    (
        "user set",
        ["bob", "disabled on", "sessions ended"],
        "bob, Disabled: on, sessions ended",
        "bob, 停用: 开, 会话已结束",
    ),
    ("app set", ["default_period_s 7200"], "Time to live: 2 hours", "有效期: 2小时"),
    ("app paused", ["name of the storm"], "name of the storm", "name of the storm"),
    ("app set", ["a setting of a newer version"], "a setting of a newer version", "a setting of a newer version"),
]


def line(language: str, action: str, recorded: list[str]) -> str:
    entry = ActionEntry(action=action, details=[Detail(text=text) for text in recorded])
    return Languages().chosen(language, "").details.line(entry, lambda ms: f"T{ms}")


@pytest.mark.parametrize(("action", "recorded", "english", "chinese"), WORDS)
def test_settings_are_in_the_readers_language(action: str, recorded: list[str], english: str, chinese: str) -> None:
    assert (line("en", action, recorded), line("zh", action, recorded)) == (english, chinese)


def test_each_setting_of_an_app_has_words_and_the_end_of_a_secret_is_in_the_readers_zone() -> None:
    quotas = Quotas(**dict.fromkeys(Quotas.DESCRIPTOR.fields_by_name, 7))
    apns = ApnsKey(
        key_id="K", team_id="T", topic="org.example", environment=APNS_ENVIRONMENT_SANDBOX, sealed_pem=b"another"
    )
    app = App(
        name="News",
        ack_info_enabled=True,
        default_period_s=60,
        apns=apns,
        allow_from=["10.0.0.0/8"],
        old_sealed_secret=b"old",
        old_secret_until_ms=OLD_SECRET_MS,
        quotas=quotas,
        channel_route=ROUTE_VENDOR,
        apns_reports=True,
    )
    before = App(name="Old")
    for recorded in (settings_changed(before, app), settings_changed(app, before)):
        assert len(recorded) > 12
        unworded = [text for text in recorded if line("zh", "app set", [text]) in (text, line("en", "app set", [text]))]
        assert unworded == []
    kept = secret_kept(app)
    assert line("en", "app secret rotated", kept) == f"Former secret key: valid until T{OLD_SECRET_MS}"
