-- The devices of each reason, by message id, partition and final state. The earliest reason of a device counts.
SELECT msgid, partition, state, groupArray((reason_given, devices)) AS reasons
FROM (
  SELECT msgid, partition, state, reason_given, groupBitmapState(number) AS devices
  FROM (
    SELECT msgid, partition, number, toString(kind) AS state,
      argMin(toString(reason), (_offset, _index)) AS reason_given
    FROM deliveries
    WHERE appkey = {appkey:String} AND msgid BETWEEN {first:UInt64} AND {last:UInt64} AND kind IN {ended:Array(String)}
    GROUP BY msgid, partition, number, state)
  WHERE reason_given != ''
  GROUP BY msgid, partition, state, reason_given)
GROUP BY msgid, partition, state
