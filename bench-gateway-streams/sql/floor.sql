-- The bare floor: what the same PostgreSQL needs, without any gateway, to store a command, wake a
-- process that waits for it, and let it claim the command. One connection enqueues, one listens and
-- claims; both transactions are as durable as the gateway's.

-- name: prepare
CREATE TABLE IF NOT EXISTS bench_floor (
    id uuid PRIMARY KEY,
    state text NOT NULL DEFAULT 'pending',
    payload bytea NOT NULL,
    dispatched_at timestamptz
);

-- name: enqueue
WITH stored AS (INSERT INTO bench_floor (id, payload) VALUES ($1, $2) RETURNING id)
SELECT pg_notify('bench_floor', id::text) FROM stored;

-- name: claim
UPDATE bench_floor SET state = 'dispatched', dispatched_at = statement_timestamp()
WHERE id = $1 AND state = 'pending' RETURNING payload;

-- name: remove
DROP TABLE IF EXISTS bench_floor;
