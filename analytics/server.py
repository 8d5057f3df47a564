"""Answers audits, from a store that has everything that was in the log when the call came."""

from zoneinfo import ZoneInfo

from analytics.audit import audit_push
from analytics.clickhouse import ClickHouse
from analytics.device_audit import audit_device
from analytics.ingestion import Ingestion
from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceServicer
from services.runtime.errors import InputError, NotFoundError, UnavailableError
from services.runtime.rpc import Context

_MAX_MSGID = 2**63


class AnalyticsServicer(AnalyticsServiceServicer):
    def __init__(self, ingestion: Ingestion, clickhouse: ClickHouse, zone: ZoneInfo) -> None:
        self._ingestion = ingestion
        self._clickhouse = clickhouse
        self._zone = zone

    async def AuditPush(self, request: AuditPushRequest, context: Context) -> AuditPushResponse:
        if not 0 < request.msgid < _MAX_MSGID:
            raise InputError("msgid is not a message id")
        behind = await self._ingestion.catch_up()
        try:
            return await audit_push(self._clickhouse, request.msgid, self._zone)
        except NotFoundError as error:
            raise _missing(error, behind) from None

    async def AuditDevice(self, request: AuditDeviceRequest, context: Context) -> AuditDeviceResponse:
        if not request.appkey or not request.token:
            raise InputError("appkey and token are needed")
        behind = await self._ingestion.catch_up()
        try:
            return await audit_device(self._clickhouse, request.appkey, request.token)
        except NotFoundError as error:
            raise _missing(error, behind) from None


def _missing(error: NotFoundError, behind: int) -> NotFoundError | UnavailableError:
    if behind:
        return UnavailableError(f"analytics is {behind} records behind the event log; try again later")
    return error
