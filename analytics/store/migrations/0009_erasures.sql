-- Persons that are erased: see analytics/erasures.py.

-- Since when the content of the push is gone, because a device to which it was sent is erased; 1970 otherwise.
ALTER TABLE pushes ADD COLUMN IF NOT EXISTS erased DateTime64(3, 'UTC') AFTER time;
ALTER TABLE task_pushes ADD COLUMN IF NOT EXISTS erased DateTime64(3, 'UTC') AFTER time;
