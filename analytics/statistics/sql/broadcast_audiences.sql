-- The audience of each push, under the value '' for all its devices.
SELECT msgid, partition, '' AS info, audience AS target FROM sets
