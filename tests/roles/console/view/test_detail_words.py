"""Details of timelines and reasons in the reader's language."""

import pytest

from edge.console.view.languages import Languages


@pytest.mark.parametrize(
    ("recorded", "chinese"),
    [
        ("message 7, mailbox full", "消息 7, 等待的消息超过 100 条"),
        ("mailbox full: 12, BadDeviceToken: 3", "等待的消息超过 100 条: 12, BadDeviceToken: 3"),
        ("in 3 of 32 partitions", "在 32 个分区中的 3 个"),
        ("in 1 partition, until 2026-11-23 10:00:00 CST", "在 1 个分区, 至 2026-11-23 10:00:00 CST"),
        ("through v2 from 10.0.0.1, request 4f2a", "通过 v2，来自 10.0.0.1, 请求 4f2a"),
        ("4 attempts failed, the last one with: no answer", "尝试 4 次均失败, 最后一次：no answer"),
        ("accepted through v2 from 10.0.0.1", "通过 v2 接收，来自 10.0.0.1"),
        ("set attributes: brand Xiaomi, region 北京市", "设置属性: 品牌 Xiaomi, 地区 北京市"),
        ("begin session, through gateway", "开始会话, 通过 gateway"),
        ("alias 100% wool", "别名 100% wool"),
        ("push 7, multicast, everyone, task k1", "推送 7, 组播, 所有设备, 任务 k1"),
        ("what a newer version says: 3", "what a newer version says: 3"),
        ("", ""),
    ],
)
def test_recorded_words_are_translated_and_others_stay(recorded: str, chinese: str) -> None:
    assert Languages().chosen("zh", "").detail(recorded) == chinese


def test_in_english_a_text_stays_as_it_was_recorded_but_for_plainer_words() -> None:
    detail = Languages().chosen("en", "").detail
    assert detail("in 1 partition, until 2026-11-23 10:00:00 CST") == "in 1 partition, until 2026-11-23 10:00:00 CST"
    assert detail("message 7, mailbox full") == "message 7, more than 100 messages were waiting"
    assert detail("everyone") == "all devices"
