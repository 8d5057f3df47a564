-- The devices of a push with a list of devices, for audits of each of its messages: columns of equal length. The message
-- id of a target is the push's first id plus its offset.

ALTER TABLE pushes
  ADD COLUMN IF NOT EXISTS target_partitions Array(UInt16) CODEC(ZSTD) AFTER task_key,
  ADD COLUMN IF NOT EXISTS target_numbers Array(UInt32) CODEC(ZSTD) AFTER target_partitions,
  ADD COLUMN IF NOT EXISTS target_offsets Array(UInt32) CODEC(ZSTD) AFTER target_numbers;

ALTER TABLE task_pushes
  ADD COLUMN IF NOT EXISTS target_partitions Array(UInt16) CODEC(ZSTD) AFTER task_key,
  ADD COLUMN IF NOT EXISTS target_numbers Array(UInt32) CODEC(ZSTD) AFTER target_partitions,
  ADD COLUMN IF NOT EXISTS target_offsets Array(UInt32) CODEC(ZSTD) AFTER target_numbers;

-- A store without ingesters (table `readers`) is filled from the log again.
TRUNCATE TABLE readers;
