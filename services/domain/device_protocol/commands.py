"""Commands and events that follow from devices' frames."""

from typing import assert_never

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import (
    AddStags,
    AddTags,
    ClearAddress,
    ClearAlias,
    DeviceCommand,
    RegisterDevice,
    RegistrationAuthority,
    RemoveStags,
    RemoveTags,
    SetAddress,
    SetAlias,
    SetAttributes,
)
from services.domain.addresses import named_channel
from services.domain.device_protocol.frames import (
    Ack,
    Activity,
    ActivityEvent,
    AddStagsRequest,
    AddTagsRequest,
    ClearAddressRequest,
    ClearAliasRequest,
    DeviceAttributes,
    Frame,
    GetDeviceRequest,
    Hello,
    Ping,
    RemoveStagsRequest,
    RemoveTagsRequest,
    Report,
    ReportEvent,
    SetAddressRequest,
    SetAliasRequest,
    SetAttributesRequest,
)


def registration(
    appkey: str,
    token: str,
    platform: "Platform.ValueType",
    frame: Hello,
    authority: "RegistrationAuthority.ValueType",
    proven_number: int = 0,
) -> DeviceCommand:
    """Return the command that registers the device of a hello, whose key or code proves a device number."""
    attributes = frame.device.to_proto() if frame.device else None
    register = RegisterDevice(
        platform=platform, attributes=attributes, authority=authority, proven_number=proven_number
    )
    return DeviceCommand(appkey=appkey, token=token, register=register)


def command(frame: Frame, appkey: str, token: str) -> DeviceCommand | None:
    """Return the command that follows from a registered device's frame; None when nothing about the device changes.

    A hello of a registered device changes its attributes, if it names any.
    """
    made = DeviceCommand(appkey=appkey, token=token)
    match frame:
        case SetAliasRequest(alias=alias):
            made.set_alias.CopyFrom(SetAlias(alias=alias))
        case ClearAliasRequest():
            made.clear_alias.CopyFrom(ClearAlias())
        case AddTagsRequest(tags=tags):
            made.add_tags.CopyFrom(AddTags(tags=tags))
        case RemoveTagsRequest(tags=tags):
            made.remove_tags.CopyFrom(RemoveTags(tags=tags))
        case AddStagsRequest(stags=stags):
            made.add_stags.CopyFrom(AddStags(stags=stags))
        case RemoveStagsRequest(stags=stags):
            made.remove_stags.CopyFrom(RemoveStags(stags=stags))
        case SetAttributesRequest(device=device):
            made.set_attributes.CopyFrom(SetAttributes(attributes=device.to_proto()))
        case SetAddressRequest():
            made.set_address.CopyFrom(_set_address(frame))
        case ClearAddressRequest(channel=channel):
            made.clear_address.CopyFrom(ClearAddress(channel=named_channel(channel)))
        case Hello(device=DeviceAttributes() as device) if device != DeviceAttributes():
            made.set_attributes.CopyFrom(SetAttributes(attributes=device.to_proto()))
        case Hello() | Ack() | Report() | Activity() | Ping() | GetDeviceRequest():
            return None
        case _:
            assert_never(frame)
    return made


def _set_address(frame: SetAddressRequest) -> SetAddress:
    made = SetAddress(channel=named_channel(frame.channel), address=frame.address)
    if frame.keys is not None:
        made.p256dh, made.auth = frame.keys.decoded()
    return made


def report_kind(event: ReportEvent) -> "OutcomeKind.ValueType":
    """Return the outcome that delivery records for a report; an ack is OUTCOME_KIND_RECEIVED."""
    match event:
        case "shown":
            return OutcomeKind.OUTCOME_KIND_SHOWN
        case "clicked":
            return OutcomeKind.OUTCOME_KIND_CLICKED
        case "dismissed":
            return OutcomeKind.OUTCOME_KIND_DISMISSED
        case _:
            assert_never(event)


def activity_kind(event: ActivityEvent) -> "SessionEventKind.ValueType":
    """Return the kind of session event for an activity."""
    match event:
        case "open":
            return SessionEventKind.SESSION_EVENT_KIND_APP_OPENED
        case "login":
            return SessionEventKind.SESSION_EVENT_KIND_LOGGED_IN
        case "logout":
            return SessionEventKind.SESSION_EVENT_KIND_LOGGED_OUT
        case _:
            assert_never(event)
