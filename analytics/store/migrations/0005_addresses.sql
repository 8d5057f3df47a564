-- The channels on which a device has an address, each with the fingerprint of the address: "webpush 3fa9c1d2".

ALTER TABLE devices ADD COLUMN IF NOT EXISTS addresses Array(String) AFTER stags;
