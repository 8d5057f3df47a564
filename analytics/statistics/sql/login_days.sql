-- The devices that logged in on each day of a time zone, for all (category '') and for each value of each category.
SELECT appkey, category, toDate32(time, '$zone') AS day, info, count() AS rows,
  groupBitmapState(bitShiftLeft(toUInt64(partition), 32) + number) AS devices
FROM sessions
ARRAY JOIN $categories AS category, ['', $values] AS info
WHERE kind = 'logged_in'
GROUP BY appkey, category, day, info
