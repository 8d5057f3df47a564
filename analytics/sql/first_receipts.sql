-- The position of the first receipt of each message on each device, and the channel that the message was handed over to.
SELECT partition, number, msgid, minIf((_offset, _index), kind = 'received'), anyIf(via, kind = 'handed_over')
FROM deliveries
WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} AND kind IN ('received', 'handed_over')
GROUP BY partition, number, msgid HAVING countIf(kind = 'received') > 0
