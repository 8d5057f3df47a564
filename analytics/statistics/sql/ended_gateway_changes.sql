-- Changes on gateways that ended, each taken back at the end of its gateway.
SELECT info, part.1, part.2
FROM (
  SELECT info, at_s, change, transform(gateway, {ended:Array(String)}, {ends_s:Array(UInt32)}, 0) AS after_s
  FROM ($changes) WHERE at_s < after_s)
ARRAY JOIN [(at_s, change), (after_s, -change)] AS part
