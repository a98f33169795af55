-- As if all that is pending had been dispatched to the sessions that stand.
UPDATE commands
SET state = 'dispatched', dispatched_at = now(), session_epoch = 1, lane_floor = seq, dispatched_by = $1
WHERE state = 'pending'
