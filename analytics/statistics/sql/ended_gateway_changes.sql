-- Changes on gateways that ended: those until the end of the gateway, all taken back in the minute after it (`after_s`).
SELECT info, part.1, part.2
FROM (
  SELECT info, hour_s, transform(gateway, {ended:Array(String)}, {ends_s:Array(UInt32)}, 0) AS after_s,
    arrayMap((change, minute) -> if(hour_s + 60 * (minute - 1) < after_s, change, toInt32(0)),
      by_minute, arrayEnumerate(by_minute)) AS kept
  FROM ($changes))
ARRAY JOIN [
  (hour_s, kept),
  (toUInt32(after_s - after_s % 3600), arrayResize([toInt32(-arraySum(kept))], -1 - intDiv(after_s % 3600, 60), toInt32(0)))
] AS part
