-- Ends the lease of the sweeps at once. $1 owner, $2 epoch.
UPDATE leases l
SET expires_at = compute_now()
WHERE l.name = 'leader:sweeps' AND l.owner = $1::text AND l.epoch = $2::bigint
