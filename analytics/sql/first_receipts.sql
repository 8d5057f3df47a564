-- The record of the first receipt of each message on each device, and the channel that the message was handed over to. Of
-- rows of one record with the same time the table keeps any one, so the row is no part of the answer.
SELECT partition, number, msgid, minIf(_offset, kind = 'received'), anyIf(via, kind = 'handed_over')
FROM deliveries
WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} AND kind IN ('received', 'handed_over')
GROUP BY partition, number, msgid HAVING countIf(kind = 'received') > 0
