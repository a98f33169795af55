-- Makes sure that the lease has a row to lock.
INSERT INTO leases (name, owner, epoch, expires_at)
VALUES ('gateway:' || $1::text, '', 0, '-infinity')
ON CONFLICT (name) DO NOTHING
