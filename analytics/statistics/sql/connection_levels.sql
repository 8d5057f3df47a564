-- By value: the connections summed over the minutes, the maximum and the minimum. A time and a change are sorted as one
-- number: the time in the upper 32 bits, the change plus 2^31 in the lower.
WITH
  levels AS (
    SELECT info, arraySort(groupArray(bitShiftLeft(toUInt64(at_s), 32) + toUInt64(change + 2147483648))) AS packed,
      arrayMap(one -> toUInt32(bitShiftRight(one, 32)), packed) AS times,
      arrayCumSum(arrayMap(one -> toInt64(bitAnd(one, 4294967295)) - 2147483648, packed)) AS of_times,
      arrayMap((at_s, next_s) -> toInt64(intDiv(next_s - at_s, 60)), times,
        arrayPushBack(arrayPopFront(times), {end_s:UInt32})) AS minutes,
      arrayFilter((level, lasted) -> lasted > 0, of_times, minutes) AS of_minutes
    FROM ($changes) GROUP BY info)
SELECT info, arrayDotProduct(of_times, minutes), arrayMax(of_minutes) AS most,
  if(times[1] > {start_s:UInt32}, 0, arrayMin(of_minutes))
FROM levels WHERE most > 0 ORDER BY info
