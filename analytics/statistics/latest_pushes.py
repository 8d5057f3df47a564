"""The latest broadcasts and multicasts of several apps with their counts, titles and the beginning of their texts."""

from analytics.questions import MAX_TIME_MS
from analytics.statistics.broadcasts import CountedPush, counted
from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import LatestPush, LatestPushesRequest, LatestPushesResponse

_LATEST = """
-- A push that is stored twice may have its words in one of the rows alone.
SELECT any(appkey) AS app, msgid, toUnixTimestamp64Milli(min(time)) AS sent_ms, any(platform), max(title) AS heading,
  max(text) AS beginning
FROM broadcasts
WHERE appkey IN {appkeys:Array(String)} AND time >= fromUnixTimestamp64Milli({from_ms:Int64})
  AND time <= fromUnixTimestamp64Milli({to_ms:Int64})
GROUP BY msgid
HAVING (sent_ms, msgid) < ({to_ms:Int64}, {below_msgid:UInt64}) AND ({words:String} = ''
  OR positionCaseInsensitiveUTF8(heading, {words:String}) > 0
  OR positionCaseInsensitiveUTF8(beginning, {words:String}) > 0)
ORDER BY sent_ms DESC, msgid DESC LIMIT {limit:UInt32}
"""


async def latest_pushes(clickhouse: ClickHouse, request: LatestPushesRequest) -> LatestPushesResponse:
    """Return the pushes, descending by time and message id."""
    found = await clickhouse.rows(
        _LATEST,
        {
            "appkeys": list(request.appkeys),
            "from_ms": max(0, request.from_ms),
            "to_ms": min(request.to_ms or MAX_TIME_MS, MAX_TIME_MS),
            "below_msgid": request.below_msgid,
            "words": request.words,
            "limit": request.limit,
        },
    )
    rows = await counted(clickhouse, [CountedPush(*push) for *push, _, _ in found])
    listed = (
        LatestPush(appkey=appkey, counts=row, title=title, text=text)
        for row, (appkey, *_, title, text) in zip(rows, found, strict=True)
    )
    return LatestPushesResponse(pushes=listed)
