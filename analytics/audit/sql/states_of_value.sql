-- The devices of each state that had one value of a category.
SELECT msgid, partition, state, bitmapAnd(states.devices, of_value) AS devices
FROM states INNER JOIN ($values) AS divided USING (msgid, partition) WHERE info = {info:String}
