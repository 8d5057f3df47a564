"""Recorded reasons in the reader's language."""

import re

import pytest

from console.shell.languages import Language, Languages
from services.domain.recorded_reasons import FixedReason


@pytest.mark.parametrize(
    ("recorded", "english", "chinese"),
    [
        (
            "alias changed",
            "the device had changed its alias by then",
            "设备此时已更换别名",
        ),
        ("mailbox full", "more than 100 messages were waiting", "等待的消息超过 100 条"),
        (
            "4 attempts failed, the last one with: internal error",
            "4 attempts failed, the last one with: internal error",
            "尝试 4 次均失败，最后一次：内部错误",
        ),
        (
            "its time to live was over before targeting resolved its audience: 100% full",
            "its time to live was over before its audience was known: 100% full",
            "在确定受众之前有效期已过：100% full",
        ),
        (
            "its time to live was over before targeting resolved its audience",
            "its time to live was over before its audience was known",
            "在确定受众之前有效期已过",
        ),
        (
            "its audience in a partition makes a record of 9 bytes, too large for the log",
            "its audience in a partition makes a record of 9 bytes, too large for the log",
            "它在一个分区的受众构成 9 字节的记录，对日志来说太大",
        ),
        (
            "9 bytes of the app's pushes wait for targeting already",
            "its audience was not known, and 9 bytes of earlier pushes of the app waited likewise",
            "其受众未能确定，且该应用较早的推送已有 9 字节在等待",
        ),
        (
            "unknown: gone",
            "it is unknown whether Apple accepted it: did not answer",
            "不确定 Apple 是否已接受：没有应答",
        ),
        (
            "refused until it expired: ServiceUnavailable",
            "Apple had it sent again later until it expired: ServiceUnavailable",
            "Apple 每次都要求稍后重发，直到推送过期：ServiceUnavailable",
        ),
        ("removed", "the device was removed meanwhile", "设备已在此期间被移除"),
        ("revoked", "its key was revoked", "其密钥已被吊销"),
        ("revoked by cli", "its key was revoked by cli", "其密钥已被 cli 吊销"),
        ("outcomes are kept for 30 days", "outcomes are kept for 30 days", "结果只保留 30 天"),
        ("BadDeviceToken", "BadDeviceToken", "BadDeviceToken"),
        ("", "", ""),
    ],
)
def test_recorded_reasons_are_in_the_readers_language_and_other_texts_stay(
    recorded: str, english: str, chinese: str
) -> None:
    languages = Languages()
    assert languages.chosen("en", "").reason(recorded) == english
    assert languages.chosen("zh", "").reason(recorded) == chinese


@pytest.mark.parametrize("language", Languages().all(), ids=lambda language: language.tag)
def test_every_fixed_reason_has_words_of_its_own(language: Language) -> None:
    words = [language.reason(reason) for reason in FixedReason]
    assert len(set(words)) == len(words)
    if language.tag == "zh":
        assert all(re.search(r"[\u4e00-\u9fff]", text) for text in words)
