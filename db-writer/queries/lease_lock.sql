-- Waits for every routing transaction of the owner until now: each holds the lease FOR KEY SHARE.
SELECT l.epoch
FROM leases l
WHERE l.name = 'gateway:' || $1::text
FOR UPDATE
