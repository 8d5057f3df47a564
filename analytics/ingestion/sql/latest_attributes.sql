-- The attributes of each device of some partitions, by its latest row.
SELECT appkey, partition, number, $attributes
FROM (SELECT * FROM $table FINAL WHERE (appkey, partition) IN {groups:Array(Tuple(String, UInt16))} AND $condition)
ORDER BY appkey, partition, number, _offset DESC LIMIT 1 BY appkey, partition, number
