-- Why a timed task was not sent: event `failed` only.

ALTER TABLE tasks ADD COLUMN IF NOT EXISTS reason String AFTER due;
