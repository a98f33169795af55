-- What the sweeps need to know.
--
-- 1. The key and the indexes of no hot table change: pending commands with an end are in
--    commands_expiring since 0001, and a dead gateway's sessions are looked for by the key of
--    node_sessions, so that no Hello pays for an index that only the dead need.

-- sessions_reaped_at: when the last look through this gateway's sessions began that was done while its
-- lease was expired and left none behind; a lease that ended later is looked at again.
-- sessions_reaped_below: no session of a lease epoch below it is left behind.
ALTER TABLE gateways
    ADD COLUMN sessions_reaped_at timestamptz,
    ADD COLUMN sessions_reaped_below bigint NOT NULL DEFAULT 1;
