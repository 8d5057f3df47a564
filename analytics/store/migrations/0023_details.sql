-- What the texts of the audits say, as facts for texts in other languages. Of the changes that were stored before there is
-- the text alone; the audience of a push from before is all devices (field 1 of AudienceSummary, 0A 00), a filter, which
-- has a column of its own, or a list (field 3, a varint after the byte 24).

ALTER TABLE device_commands ADD COLUMN IF NOT EXISTS details String AFTER detail;

ALTER TABLE actions ADD COLUMN IF NOT EXISTS details String AFTER detail;

ALTER TABLE pushes ADD COLUMN IF NOT EXISTS audience_summary String DEFAULT multiIf(
  filter != '', '',
  audience = 'everyone', unhex('0A00'),
  kind != 'unicast' OR empty(target_numbers), '',
  length(target_numbers) < 128, char(24, length(target_numbers)),
  length(target_numbers) < 16384,
    char(24, bitOr(128, length(target_numbers) % 128), intDiv(length(target_numbers), 128)),
  char(24, bitOr(128, length(target_numbers) % 128), bitOr(128, intDiv(length(target_numbers), 128) % 128),
    intDiv(length(target_numbers), 16384))) AFTER audience;

ALTER TABLE task_pushes ADD COLUMN IF NOT EXISTS audience_summary String DEFAULT multiIf(
  filter != '', '',
  audience = 'everyone', unhex('0A00'),
  kind != 'unicast' OR empty(target_numbers), '',
  length(target_numbers) < 128, char(24, length(target_numbers)),
  length(target_numbers) < 16384,
    char(24, bitOr(128, length(target_numbers) % 128), intDiv(length(target_numbers), 128)),
  char(24, bitOr(128, length(target_numbers) % 128), bitOr(128, intDiv(length(target_numbers), 128) % 128),
    intDiv(length(target_numbers), 16384))) AFTER audience;
