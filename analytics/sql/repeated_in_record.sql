-- Messages whose receipt on a device one record has more than once, with the first row of it there.
SELECT partition, _offset, number, msgid, min(_index) FROM acks
WHERE appkey = {appkey:String} AND _offset IN {offsets:Array(UInt64)} AND msgid IN {msgids:Array(UInt64)}
GROUP BY partition, _offset, number, msgid HAVING uniqExact(_index) > 1
