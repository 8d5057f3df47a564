SELECT toUnixTimestamp64Milli(time), interface, call, result, answer, code, address, is_signed, left_out
FROM refused_requests FINAL
WHERE appkey = {appkey:String}
ORDER BY time DESC, _event_id DESC, _index DESC
LIMIT {limit:UInt32}
