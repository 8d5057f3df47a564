-- Why a push failed in a partition: event `failed` only.

ALTER TABLE push_partitions ADD COLUMN IF NOT EXISTS reason String AFTER expires;
