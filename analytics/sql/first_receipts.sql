-- The position of the first receipt of each message on each device.
SELECT partition, number, msgid, min((_offset, _index)) FROM deliveries
WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} AND kind = 'received'
GROUP BY partition, number, msgid
