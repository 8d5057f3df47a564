-- Outcomes take less to store: what is the same for all of them is not in each row, and each row is merged fewer times.

-- An outcome is in the topic `deliveries`, in the partition of its device.
ALTER TABLE deliveries
  MODIFY COLUMN _topic LowCardinality(String) ALIAS 'deliveries',
  MODIFY COLUMN _partition UInt16 ALIAS partition;

-- Parts are merged when they have ten times the rows of the largest one, in place of five times, so there are more of them.
ALTER TABLE deliveries MODIFY SETTING merge_selector_base = 10;
