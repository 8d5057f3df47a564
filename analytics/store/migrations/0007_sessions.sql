-- Sessions name their device by its number; `device_tokens` has its token.

-- Tokens that are stored here go. An older version, which may run beside this one, inserts them on; nothing keeps them.
ALTER TABLE sessions DROP COLUMN IF EXISTS token;
ALTER TABLE sessions ADD COLUMN IF NOT EXISTS token String EPHEMERAL '' AFTER number;
