-- By value: the connections summed over the minutes, the maximum and the minimum. `levels` are the connections in each
-- minute of an hour, less those before the hour; after it, the last level stays until the next hour with a change.
WITH
  hours AS (
    SELECT info, hour_s, arrayCumSum(sumForEach(arrayResize(by_minute, 60, toInt32(0)))) AS levels
    FROM ($changes) GROUP BY info, hour_s),
  in_order AS (
    SELECT info, hour_s, levels, levels[60] AS last,
      sum(last) OVER (PARTITION BY info ORDER BY hour_s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
      leadInFrame(hour_s, 1, {end_s:UInt32}) OVER (
        PARTITION BY info ORDER BY hour_s ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS next_s
    FROM hours),
  within AS (
    SELECT info, hour_s, before, last,
      intDiv(greatest(toInt64({start_s:UInt32}) - hour_s, 0), 60) AS first,
      arraySlice(levels, first + 1, greatest(intDiv(toInt64({end_s:UInt32}) - hour_s, 60) - first, 0)) AS counted,
      intDiv(greatest(toInt64(next_s) - greatest(hour_s + 3600, {start_s:UInt32}), 0), 60) AS minutes_after,
      if(minutes_after > 0, arrayPushBack(counted, last), counted) AS seen
    FROM in_order)
SELECT info, sum(arraySum(counted) + last * minutes_after + before * (length(counted) + minutes_after)) AS total,
  maxIf(before + arrayMax(seen), notEmpty(seen)) AS most,
  if(min(hour_s) > {start_s:UInt32}, 0, minIf(before + arrayMin(seen), notEmpty(seen))) AS least
FROM within GROUP BY info HAVING most > 0 ORDER BY info
