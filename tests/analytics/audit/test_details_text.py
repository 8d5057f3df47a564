"""The English text of each kind of detail of an audit, for commands and programs."""

from base64 import b64encode
from zoneinfo import ZoneInfo

import pytest

from analytics.audit.details import command_name, origins, platform, push_kind, read_details, stored_details, texts
from analytics.audit.details_text import details_text
from protos.accounts.v1.accounts_pb2 import LinkPurpose, LogInMethod, MemberRole
from protos.analytics.v1.details_pb2 import (
    AddressChange,
    AliasCleared,
    AliasTakenAway,
    AttributeValue,
    AudienceSummary,
    CommandOrigin,
    Detail,
    PartitionCount,
    ReasonCount,
    Remark,
    RequestedChange,
    ServiceChannel,
    StagChange,
    TagChange,
)
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH, Platform
from protos.registry.v1.devices_pb2 import AddTags, DeviceCommand

ZONE = ZoneInfo("Asia/Shanghai")
V2 = CommandOrigin(interface="v2", address="10.0.0.1", request_id="4f2a")
TAGS = RequestedChange(command="add tags", details=[Detail(tag=TagChange(tag=tag)) for tag in (1, -2)])

TEXTS = [
    (Detail(message=7), "message 7"),
    (Detail(push=7), "push 7"),
    (Detail(task="k"), "task k"),
    (Detail(draft="d"), "draft d"),
    (Detail(push_kind=Kind.KIND_MULTICAST), "multicast"),
    (Detail(audience=AudienceSummary(devices=2)), "2 devices"),
    (Detail(devices=1), "1 device"),
    (Detail(origin=V2), "through v2 from 10.0.0.1, request 4f2a"),
    (Detail(origin=CommandOrigin(interface="cli")), "through cli"),
    (Detail(origin=CommandOrigin(writer="edge")), "by edge"),
    (Detail(accepted=V2), "accepted through v2 from 10.0.0.1, request 4f2a"),
    (Detail(accepted=CommandOrigin()), "accepted"),
    (Detail(due_ms=1_790_000_000_000), "due 2026-09-21 22:13:20 CST"),
    (Detail(until_ms=1_790_000_000_000), "until 2026-09-21 22:13:20 CST"),
    (Detail(partitions=PartitionCount(count=1)), "in 1 partition"),
    (Detail(partitions=PartitionCount(count=1, of=32)), "in 1 of 32 partitions"),
    (Detail(failed_partitions=2), "in 2 partitions it never starts"),
    (Detail(reason="mailbox full"), "mailbox full"),
    (Detail(reason_count=ReasonCount(reason="mailbox full", devices=3)), "mailbox full: 3"),
    (Detail(platform=Platform.PLATFORM_IOS), "ios"),
    (Detail(alias="a"), "alias a"),
    (Detail(alias_cleared=AliasCleared()), "no alias"),
    (Detail(alias_cleared=AliasCleared(only_alias="a")), "no alias if it is a"),
    (Detail(alias_taken=AliasTakenAway()), "the alias had too many devices"),
    (Detail(alias_taken=AliasTakenAway(token="t")), "the alias was taken by device t"),
    (
        Detail(alias_taken=AliasTakenAway(token="t", proven=True)),
        "the alias was taken by device t, which has proven it",
    ),
    (Detail(address=AddressChange(channel=CHANNEL_WEBPUSH, fingerprint="3fa9c1d2")), "+address of webpush 3fa9c1d2"),
    (Detail(address=AddressChange(channel=CHANNEL_WEBPUSH, removed=True)), "-address of webpush"),
    (Detail(channel=ServiceChannel(channel="fcm")), "by fcm"),
    (Detail(channel=ServiceChannel(channel="apns", simulated=True)), "by the simulator of apns"),
    (Detail(channel=ServiceChannel(channel="fcm", devices=3)), "fcm: 3"),
    (Detail(channel=ServiceChannel(channel="fcm", simulated=True, devices=3)), "simulator of fcm: 3"),
    (Detail(address_taken="t"), "device t set the same address"),
    (Detail(tag=TagChange(tag=1)), "+tag 1"),
    (Detail(stag=StagChange(stag="news", removed=True)), '-stag "news"'),
    (Detail(attribute=AttributeValue(name="os_version", value="9")), "os_version 9"),
    (Detail(attribute=AttributeValue(name="region")), "region unknown"),
    (Detail(requested_change=TAGS), "add tags: +tag 1, +tag -2"),
    (Detail(requested_change=RequestedChange(command="begin session")), "begin session"),
    (Detail(device_numbers=1000), "1000 device numbers"),
    (Detail(log_in_method=LogInMethod.LOG_IN_METHOD_ONE_TIME_CODE), "one time code"),
    (Detail(role=MemberRole.MEMBER_ROLE_VIEWER), "viewer"),
    (Detail(link_purpose=LinkPurpose.LINK_PURPOSE_PASSWORD_RESET), "password reset"),
    (Detail(remark=Remark.REMARK_WITHIN_HOUR), "in this hour"),
    (Detail(text="disabled on"), "disabled on"),
    (Detail(), ""),
]


@pytest.mark.parametrize(("detail", "text"), TEXTS)
def test_each_kind_of_detail_has_an_english_text(detail: Detail, text: str) -> None:
    assert details_text([detail], ZONE) == text


def test_every_kind_of_detail_and_every_remark_is_tested() -> None:
    kinds = {detail.WhichOneof("detail") for detail, _ in TEXTS}
    assert kinds == {field.name for field in Detail.DESCRIPTOR.oneofs_by_name["detail"].fields} | {None}
    remarks = [details_text([Detail(remark=remark)]) for remark in Remark.values() if remark]
    assert len(set(remarks)) == len(remarks) == len(Remark.values()) - 1
    assert all(remarks)


def test_the_store_keeps_details() -> None:
    details = [Detail(push=7), Detail(text="<storm>")]
    stored = b64encode(stored_details(details)).decode()
    assert list(read_details(stored)) == details
    assert list(read_details("")) == []


def test_parts_that_are_not_known_are_left_out() -> None:
    assert origins("", "", "10.0.0.1", "4f2a") == []
    assert origins("edge", "v2", "", "") == [Detail(origin=CommandOrigin(interface="v2"))]
    assert texts("a", "", "b") == [Detail(text="a"), Detail(text="b")]


def test_names_in_the_store_become_values_again() -> None:
    assert (push_kind("unicast"), platform("ios")) == (
        Detail(push_kind=Kind.KIND_UNICAST),
        Detail(platform=Platform.PLATFORM_IOS),
    )
    assert details_text([platform("unknown_9"), push_kind("unknown_8")]) == "unknown_9, unknown_8"


def test_a_command_is_named_as_a_requested_change_names_it() -> None:
    assert command_name(DeviceCommand(add_tags=AddTags(tags=[1]))) == TAGS.command
