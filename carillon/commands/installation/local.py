"""The installation on this machine, or at the roles' addresses: its roles are called."""

from carillon.commands.role_calls import call_role
from edge.console.api.answers.audits import DeviceAudit, PushAudit, device_answer, push_answer
from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.runtime.rpc.channel import Channel

_TIMEOUT_S = 30.0


class LocalInstallation:
    """Asks the roles themselves, as an operator."""

    def audit_push(self, msgid: int, token: str, *, allow_behind: bool) -> PushAudit:
        async def call(channel: Channel) -> AuditPushResponse:
            request = AuditPushRequest(msgid=msgid, token=token, allow_behind=allow_behind)
            return await AnalyticsServiceStub(channel).AuditPush(request, timeout=_TIMEOUT_S)

        return push_answer(call_role("analytics", call))

    def audit_device(self, appkey: str, token: str, *, allow_behind: bool) -> DeviceAudit:
        async def call(channel: Channel) -> AuditDeviceResponse:
            request = AuditDeviceRequest(appkey=appkey, token=token, allow_behind=allow_behind)
            return await AnalyticsServiceStub(channel).AuditDevice(request, timeout=_TIMEOUT_S)

        return device_answer(call_role("analytics", call))
