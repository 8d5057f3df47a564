-- The column `interface`, through which a command came, had another name.

ALTER TABLE pushes RENAME COLUMN IF EXISTS door TO interface;
ALTER TABLE push_cancels RENAME COLUMN IF EXISTS door TO interface;
ALTER TABLE tasks RENAME COLUMN IF EXISTS door TO interface;
ALTER TABLE task_pushes RENAME COLUMN IF EXISTS door TO interface;
ALTER TABLE device_commands RENAME COLUMN IF EXISTS door TO interface;
ALTER TABLE app_changes RENAME COLUMN IF EXISTS door TO interface;
ALTER TABLE actions RENAME COLUMN IF EXISTS door TO interface;
