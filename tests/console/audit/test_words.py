"""Details of audits in the reader's language."""

import re

import pytest

from console.shell.languages import Languages
from protos.accounts.v1.accounts_pb2 import LinkPurpose, LogInMethod, MemberRole
from protos.analytics.v1.analytics_pb2 import ActionEntry, TimelineEntry
from protos.analytics.v1.details_pb2 import (
    AddressChange,
    AliasCleared,
    AliasTakenAway,
    AttributeValue,
    AudienceSummary,
    CommandOrigin,
    Detail,
    ListedAliases,
    PartitionCount,
    ReasonCount,
    Remark,
    RequestedChange,
    ServiceChannel,
    StagChange,
    TagChange,
)
from protos.push.v1.push_pb2 import Everyone, Filter, Kind, TagGroup
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, Platform
from protos.registry.v1.devices_pb2 import Attributes, DeviceCommand

V2 = CommandOrigin(interface="v2", address="10.0.0.1", request_id="4f2a")
BRAND = AttributeValue(name="brand", value="100% Xiaomi")
CHANGE = RequestedChange(command="set attributes", details=[Detail(attribute=BRAND)])

WORDS = [
    (Detail(message=7), "message 7", "消息 7"),
    (Detail(push=7), "push 7", "推送 7"),
    (Detail(task="k"), "task k", "任务 k"),
    (Detail(draft="d"), "draft d", "草稿 d"),
    (Detail(push_kind=Kind.KIND_MULTICAST), "multicast", "组播"),
    (Detail(audience=AudienceSummary(everyone=Everyone())), "all devices", "所有设备"),
    (Detail(devices=2), "2 devices", "2 台设备"),
    (Detail(origin=V2), "through v2 from 10.0.0.1, request 4f2a", "通过 v2，来自 10.0.0.1, 请求 4f2a"),
    (Detail(origin=CommandOrigin(writer="gateway")), "by gateway", "由 gateway"),
    (Detail(accepted=V2), "accepted through v2 from 10.0.0.1, request 4f2a", "通过 v2 接收，来自 10.0.0.1, 请求 4f2a"),
    (Detail(accepted=CommandOrigin()), "accepted", "已接收"),
    (Detail(due_ms=5), "due T5", "定于 T5"),
    (Detail(until_ms=5), "until T5", "至 T5"),
    (Detail(partitions=PartitionCount(count=1)), "in 1 partition", "在 1 个分区"),
    (Detail(partitions=PartitionCount(count=3, of=32)), "in 3 of 32 partitions", "在 32 个分区中的 3 个"),
    (Detail(failed_partitions=2), "in 2 partitions it never starts", "在 2 个分区不会开始"),
    (Detail(reason="mailbox full"), "more than 100 messages were waiting", "等待的消息超过 100 条"),
    (
        Detail(reason_count=ReasonCount(reason="mailbox full", devices=3)),
        "more than 100 messages were waiting: 3",
        "等待的消息超过 100 条: 3",
    ),
    (Detail(platform=Platform.PLATFORM_IOS), "iOS", "iOS"),
    (Detail(alias="100% wool"), "alias 100% wool", "别名 100% wool"),
    (Detail(alias_cleared=AliasCleared()), "no alias", "无别名"),
    (Detail(alias_cleared=AliasCleared(only_alias="a")), "no alias if it is a", "若别名为 a 则清除"),
    (
        Detail(address=AddressChange(channel=CHANNEL_WEBPUSH, fingerprint="3fa9c1d2")),
        "+address on the channel webpush 3fa9c1d2",
        "+通道 webpush 上的地址 3fa9c1d2",
    ),
    (Detail(address_taken="t"), "the device t set the same address", "设备 t 设置了同一地址"),
    (
        Detail(channel=ServiceChannel(channel="apns", simulated=True)),
        "simulator of Apple's push service",
        "模拟器（Apple 推送服务）",
    ),
    (
        Detail(channel=ServiceChannel(channel="xiaomi", devices=1200)),
        "Xiaomi's push service: 1,200",
        "小米推送服务: 1,200",
    ),
    (Detail(alias_taken=AliasTakenAway()), "the alias had too many devices", "该别名的设备过多"),
    (Detail(alias_taken=AliasTakenAway(token="t")), "the alias was taken by the device t", "别名已被设备 t 占用"),
    (
        Detail(alias_taken=AliasTakenAway(token="t", proven=True)),
        "the alias was taken by the device t, which has proven it",
        "别名已被持有证明的设备 t 占用",
    ),
    (Detail(remark=Remark.REMARK_PROVEN), "proven by the app's server", "由应用服务器证明"),
    (Detail(tag=TagChange(tag=1)), "+tag 1", "+标签 1"),
    (Detail(stag=StagChange(stag="a, b", removed=True)), '-string tag "a, b"', "-字符串标签“a, b”"),
    (Detail(attribute=BRAND), "brand 100% Xiaomi", "品牌 100% Xiaomi"),
    (Detail(attribute=AttributeValue(name="region")), "region unknown", "地区 未知"),
    (Detail(requested_change=CHANGE), "set attributes: brand 100% Xiaomi", "设置属性: 品牌 100% Xiaomi"),
    (Detail(device_numbers=1), "1 device number", "1 个设备编号"),
    (Detail(log_in_method=LogInMethod.LOG_IN_METHOD_PASSWORD), "password", "密码"),
    (Detail(role=MemberRole.MEMBER_ROLE_SENDER), "sender", "发送者"),
    (Detail(link_purpose=LinkPurpose.LINK_PURPOSE_INVITATION), "invitation", "邀请"),
    (Detail(remark=Remark.REMARK_WITHIN_HOUR), "in this hour", "在这一小时内"),
    (Detail(text="mailbox full"), "mailbox full", "mailbox full"),
]
AUDIENCES = [
    (AudienceSummary(everyone=Everyone()), "all devices", "所有设备"),
    (AudienceSummary(filter=Filter(tags=[TagGroup(tags=[1])])), "tag 1", "标签 1"),
    (AudienceSummary(devices=1), "1 device", "1 台设备"),
    (AudienceSummary(tokens=3), "3 tokens", "3 个 Token"),
    (
        AudienceSummary(aliases=ListedAliases(count=2)),
        "the most recently active device of each of 2 aliases",
        "2 个别名各自最近活跃的设备",
    ),
    (AudienceSummary(aliases=ListedAliases(count=1, all_devices=True)), "all devices of 1 alias", "1 个别名的所有设备"),
]
SAME_IN_EVERY_LANGUAGE = {"platform", "text"}


def line(language: str, *details: Detail) -> str:
    return Languages().chosen(language, "").details.line(TimelineEntry(details=details), lambda ms: f"T{ms}")


def of_enum(name: str, number: int) -> Detail:
    detail = Detail()
    setattr(detail, name, number)
    return detail


def is_chinese(text: str) -> bool:
    return re.search(r"[\u4e00-\u9fff]", text) is not None


@pytest.mark.parametrize(("detail", "english", "chinese"), WORDS)
def test_each_kind_of_detail_is_in_the_readers_language(detail: Detail, english: str, chinese: str) -> None:
    assert (line("en", detail), line("zh", detail)) == (english, chinese)


def test_every_kind_of_detail_has_chinese_words() -> None:
    kinds = {field.name for field in Detail.DESCRIPTOR.oneofs_by_name["detail"].fields}
    worded = {detail.WhichOneof("detail") for detail, _, chinese in WORDS if is_chinese(chinese)}
    assert worded == kinds - SAME_IN_EVERY_LANGUAGE


def test_every_value_of_an_enum_has_chinese_words_of_its_own() -> None:
    fields = Detail.DESCRIPTOR.oneofs_by_name["detail"].fields
    enums = {field.name: field.enum_type for field in fields if field.enum_type and field.name != "platform"}
    assert len(enums) == 5
    for name, enum in enums.items():
        known = [line("zh", of_enum(name, value.number)) for value in enum.values if value.number]
        assert all(map(is_chinese, known)), name
        assert len({*known, "未知"}) == len(known) + 1, name
        assert line("zh", of_enum(name, 99)) == "未知"


def test_every_command_to_a_device_and_every_attribute_has_chinese_words() -> None:
    commands = [field.name.replace("_", " ") for field in DeviceCommand.DESCRIPTOR.oneofs_by_name["command"].fields]
    assert len(commands) > 10
    attributes = [field.name for field in Attributes.DESCRIPTOR.fields]
    details = [
        *(Detail(requested_change=RequestedChange(command=command)) for command in commands),
        *(Detail(attribute=AttributeValue(name=name, value="x")) for name in attributes),
    ]
    assert [detail for detail in details if not is_chinese(line("zh", detail))] == []


@pytest.mark.parametrize(("summary", "english", "chinese"), AUDIENCES)
def test_each_kind_of_audience_is_in_the_readers_language(summary: AudienceSummary, english: str, chinese: str) -> None:
    languages = Languages()
    assert languages.chosen("en", "").audience(summary) == english
    assert languages.chosen("zh", "").audience(summary) == chinese


def test_every_kind_of_audience_has_chinese_words() -> None:
    kinds = {summary.WhichOneof("audience") for summary, _, chinese in AUDIENCES if is_chinese(chinese)}
    assert kinds == {field.name for field in AudienceSummary.DESCRIPTOR.oneofs_by_name["audience"].fields}


def test_details_of_a_line_are_joined() -> None:
    details = [Detail(push=7), Detail(push_kind=Kind.KIND_UNICAST), Detail(text="k1")]
    assert line("zh", *details) == "推送 7, 单播, k1"


def test_a_line_of_analytics_of_another_version_is_shown_as_recorded() -> None:
    details = Languages().chosen("zh", "").details
    newer = ActionEntry(detail="push 7, what only a newer version says", details=[Detail(push=7), Detail()])
    for entry in (newer, ActionEntry(detail="push 7")):
        assert details.line(entry, str) == entry.detail
