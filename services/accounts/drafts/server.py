"""DraftsService: pushes that wait for the approval of a second person."""

from protos.accounts.v1.drafts_pb2 import (
    DecideDraftRequest,
    DecideDraftResponse,
    GetDraftsRequest,
    GetDraftsResponse,
    ListDraftsRequest,
    ListDraftsResponse,
    StoredDraft,
    SubmitDraftRequest,
    SubmitDraftResponse,
)
from protos.accounts.v1.drafts_pb2_grpc import DraftsServiceServicer
from services.accounts.drafts import decide
from services.accounts.fact_writer import FactWriter
from services.accounts.store import AccountTable
from services.accounts.summaries import stored_draft
from services.domain.ids import event_id
from services.domain.text import check_texts
from services.runtime.errors import InputError
from services.runtime.process.clock import Clock
from services.runtime.projection.follower import Follower
from services.runtime.rpc.server import Context

MAX_PAGE = 1000


class DraftsServicer(DraftsServiceServicer):
    """Answers calls about drafts. All queries run in the follower's thread, over the connection of `committed`."""

    def __init__(self, follower: Follower, committed: AccountTable, writer: FactWriter, clock: Clock) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
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

    async def _stored(self, draft_id: str) -> StoredDraft:
        kept = await self._follower.query(decide.draft_by_id, self._committed, draft_id)
        return stored_draft(kept, self._clock.now_ms())
