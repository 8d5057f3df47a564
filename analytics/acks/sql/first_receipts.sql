-- The position of the first receipt of each message on each device.
SELECT partition, number, msgid, min((_offset, _index)) FROM (
  SELECT partition, number, msgid, _offset, _index FROM deliveries
  WHERE appkey = {appkey:String} AND msgid IN {msgids:Array(UInt64)} AND kind = 'received'
  UNION ALL
  SELECT partition, number, msgid, _offset, _index FROM acks
  WHERE appkey = {appkey:String} AND (partition, _offset) IN {records:Array(Tuple(UInt16, UInt64))}
    AND msgid IN {msgids:Array(UInt64)})
GROUP BY partition, number, msgid
