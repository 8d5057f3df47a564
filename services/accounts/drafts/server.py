"""DraftsService: decides which pushes need a second person's approval, and serves the drafts that wait for one."""

import asyncio
from collections.abc import Sequence

import numpy as np

from protos.accounts.v1.drafts_pb2 import (
    AdmitPushRequest,
    AdmitPushResponse,
    AdmitTaskRequest,
    AdmitTaskResponse,
    ApprovalNeed,
    DecideDraftRequest,
    DecideDraftResponse,
    DraftFact,
    GetDraftsRequest,
    GetDraftsResponse,
    ListDraftsRequest,
    ListDraftsResponse,
    PushAudience,
    StoredDraft,
    SubmitDraftRequest,
    SubmitDraftResponse,
)
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceServicer
from protos.push.v1.push_pb2 import Audience, Devices, Everyone, SendPush
from services.accounts.decide import actor_of
from services.accounts.drafts import decide
from services.accounts.drafts import decide as admission
from services.accounts.fact_writer import FactWriter
from services.accounts.store import AccountTable
from services.accounts.summaries import stored_draft
from services.domain.approval import Reach
from services.domain.bitmap_resolver import AudienceBitmapResolver
from services.domain.ids import event_id
from services.domain.text import check_texts
from services.domain.token_resolver import TokenAndAliasResolver
from services.errors import InputError
from services.net.rpc.server import Context
from services.process.clock import Clock
from services.process.metrics import TASKS_HELD
from services.replica.follower import Follower
from services.replica.peers import Peers

# Counts of devices: those that a push reaches now, and those that its app has.

EVERYONE = Audience(everyone=Everyone())


class AudienceCounts:
    """Resolves the audiences of pushes as delivery does, by targeting and the registry, and counts their devices."""

    def __init__(self, peers: Peers, partitions: int) -> None:
        self._partitions = partitions
        self._bitmaps = AudienceBitmapResolver(peers)
        self._tokens = TokenAndAliasResolver(peers, partitions)

    async def of(self, pushes: Sequence[PushAudience]) -> list[Reach]:
        """Return how many devices each push reaches, and how many its app has. Raises the error of a role that does not
        answer: a push of unknown reach must not be sent."""
        return list(await asyncio.gather(*(self._of_push(push) for push in pushes)))

    async def _of_push(self, push: PushAudience) -> Reach:
        of_app = self._count(push.appkey, EVERYONE)
        match push.audience.WhichOneof("audience"):
            case "everyone":
                every = await of_app
                return Reach(push.appkey, every, every)
            case "tokens" | "aliases":
                found, every = await asyncio.gather(self._tokens.resolve(push.appkey, push.audience), of_app)
                return Reach(push.appkey, _distinct(found.audience.devices), every)
            case _:
                return Reach(push.appkey, *await asyncio.gather(self._count(push.appkey, push.audience), of_app))

    async def _count(self, appkey: str, audience: Audience) -> int:
        send = SendPush(appkey=appkey, audience=audience)
        bitmaps, error, _ = await self._bitmaps.resolve(send, range(self._partitions))
        if error is not None:
            raise error
        return sum(len(bitmap) for bitmap in bitmaps.values())


def _distinct(devices: Devices) -> int:
    """Return the number of different devices: a token that is listed twice is one device."""
    partitions = np.frombuffer(devices.partitions, "<u2").astype(np.uint64)
    numbers = np.frombuffer(devices.numbers, "<u4").astype(np.uint64)
    return len(np.unique((partitions << np.uint64(32)) | numbers))


MAX_PAGE = 1000


class DraftsServicer(DraftsServiceServicer):
    """Answers calls about drafts. All queries run in the follower's thread, over the connection of `committed`."""

    def __init__(
        self, follower: Follower, committed: AccountTable, writer: FactWriter, counts: AudienceCounts, clock: Clock
    ) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._counts = counts
        self._clock = clock

    async def SubmitDraft(self, request: SubmitDraftRequest, context: Context) -> SubmitDraftResponse:
        check_texts(request)
        new_id = request.new_draft_id or event_id().hex()
        await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide.submit_draft(accounts, actor, request, new_id, now_ms),
        )
        return SubmitDraftResponse(draft=await self._stored(request.draft.draft_id or new_id))

    async def DecideDraft(self, request: DecideDraftRequest, context: Context) -> DecideDraftResponse:
        check_texts(request)
        await self._writer.write_for(
            request.origin,
            lambda accounts, actor, now_ms: decide.decide_draft(accounts, actor, request, now_ms),
        )
        return DecideDraftResponse(draft=await self._stored(request.draft_id))

    async def GetDrafts(self, request: GetDraftsRequest, context: Context) -> GetDraftsResponse:
        now_ms = self._clock.now_ms()

        def find(accounts: AccountTable) -> GetDraftsResponse:
            found = (accounts.draft(draft_id) for draft_id in request.draft_ids)
            return GetDraftsResponse(drafts=[stored_draft(kept, now_ms) for kept in found if kept])

        return await self._follower.query(find, self._committed)

    async def ListDrafts(self, request: ListDraftsRequest, context: Context) -> ListDraftsResponse:
        check_texts(request)
        if not 1 <= request.limit <= MAX_PAGE:
            raise InputError(f"limit must be from 1 to {MAX_PAGE}")
        now_ms = self._clock.now_ms()

        def find(accounts: AccountTable) -> ListDraftsResponse:
            found = accounts.drafts(request, now_ms)
            return ListDraftsResponse(drafts=[stored_draft(kept, now_ms, with_content=False) for kept in found])

        return await self._follower.query(find, self._committed)

    async def AdmitPush(self, request: AdmitPushRequest, context: Context) -> AdmitPushResponse:
        if not request.pushes:
            raise InputError("pushes must not be empty")
        reached = await self._reached(request.pushes)

        def decide_push(accounts: AccountTable, now_ms: int) -> tuple[ApprovalNeed | None, list[DraftFact]]:
            actor = actor_of(accounts, request.origin, now_ms)
            return admission.admit_push(accounts, actor, request, reached, now_ms)

        return AdmitPushResponse(need=await self._writer.write(decide_push, request.origin))

    async def AdmitTask(self, request: AdmitTaskRequest, context: Context) -> AdmitTaskResponse:
        if not request.pushes or not request.task_key:
            raise InputError("a task needs a key and at least one push")
        reached = await self._reached(
            [PushAudience(appkey=push.appkey, audience=push.audience) for push in request.pushes]
        )
        draft_id = await self._writer.write(
            lambda accounts, now_ms: admission.admit_task(accounts, request, reached, now_ms), request.origin
        )
        if draft_id:
            TASKS_HELD.inc()
        return AdmitTaskResponse(draft_id=draft_id)

    async def _reached(self, pushes: Sequence[PushAudience]) -> list[Reach]:
        """Return how many devices each push reaches; nothing if no team of the apps has approval rules."""
        appkeys = [push.appkey for push in pushes]
        if not await self._follower.query(admission.are_counted, self._committed, appkeys):
            return []
        return await self._counts.of(pushes)

    async def _stored(self, draft_id: str) -> StoredDraft:
        kept = await self._follower.query(decide.draft_by_id, self._committed, draft_id)
        return stored_draft(kept, self._clock.now_ms())
