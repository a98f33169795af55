-- One dispatch pass: proves the lease, finds what is due, locks, marks, returns.
--
-- $1 gateway, $2 owner, $3 lease epoch; one element a lane in $4 node, $5 session epoch, $6 lane,
-- $7 free credit, $8 cursor, $9 capacity, $10 in flight; $11 most claims of the pass; $12 kinds that go to no machine
-- that its tenant controls; $13 the error of commands whose kind the session's certificate does not allow: they end as
-- refused in the place in which they would have gone; again one element a lane in $14 the floor that the lane's last
-- dispatch here left, 0 where there was none.
--
-- Locks: the lease FOR KEY SHARE, then of the nodes with something due the sessions FOR KEY SHARE in
-- node order, then the commands in (node, id) order. It waits for no other session or command:
-- a session that a Hello holds is about to get a new epoch, and what another transaction holds of a
-- lane ends that lane's part of the pass, since nothing may overtake it.
-- One row comes back even where nothing was claimed, to say whether the lease is held.
WITH lease AS MATERIALIZED (
    SELECT l.epoch
    FROM leases l
    WHERE l.name = 'gateway:' || $1::text AND l.owner = $2::text AND l.epoch = $3::bigint
      AND l.expires_at > compute_now()
    FOR KEY SHARE
),
wanted AS MATERIALIZED (
    SELECT w.slot, w.node_id COLLATE "C" AS node_id, w.session_epoch, w.lane COLLATE "C" AS lane, w.free,
           w.from_seq, w.capacity, w.in_flight, w.from_floor
    FROM unnest($4::text[], $5::bigint[], $6::text[], $7::integer[], $8::bigint[], $9::integer[], $10::integer[],
                $14::bigint[])
        WITH ORDINALITY w (node_id, session_epoch, lane, free, from_seq, capacity, in_flight, from_floor, slot)
),
found AS MATERIALIZED (
    SELECT w.*, due.id, due.seq, due.attempt, due.deferred, due.kind, due.version, due.place
    FROM wanted w
    CROSS JOIN LATERAL (
        SELECT u.*, row_number() OVER (ORDER BY u.seq) AS place
        FROM (
            (SELECT c.id, c.seq, c.attempt, c.deferred, c.kind, c.ctid AS version
             FROM commands c
             WHERE c.node_id = w.node_id AND c.lane = w.lane AND c.phase = 'p' AND NOT c.deferred
               AND c.seq > w.from_seq AND (c.not_after IS NULL OR c.not_after > compute_now())
             ORDER BY c.seq
             LIMIT w.free)
            UNION ALL
            -- The thousand that came due first; of these those with the lowest seq.
            (SELECT c.id, c.seq, c.attempt, c.deferred, c.kind, c.ctid AS version
             FROM commands c
             WHERE c.node_id = w.node_id AND c.lane = w.lane AND c.phase = 'p' AND c.deferred
               AND c.not_before <= compute_now() AND (c.not_after IS NULL OR c.not_after > compute_now())
             ORDER BY c.not_before
             LIMIT 1000)
        ) u
        ORDER BY u.seq
        LIMIT w.free
    ) due
    WHERE EXISTS (SELECT FROM lease)
    LIMIT $11::bigint
),
live AS MATERIALIZED (
    SELECT s.node_id, s.session_epoch, s.certificate_serial
    FROM (SELECT DISTINCT f.node_id, f.session_epoch FROM found f ORDER BY f.node_id, f.session_epoch) n
    CROSS JOIN LATERAL (
        SELECT s.node_id, s.session_epoch, s.certificate_serial
        FROM node_sessions s
        WHERE s.node_id = n.node_id AND s.session_epoch = n.session_epoch AND s.gateway_id = $1
          AND s.disconnected_at IS NULL
        FOR KEY SHARE SKIP LOCKED
    ) s
),
-- Sessions whose certificates do not allow every kind. There is an index of those alone.
limited AS MATERIALIZED (
    SELECT s.node_id, k.tenant_controlled, k.allowed_kinds
    FROM live s
    CROSS JOIN LATERAL (
        SELECT k.tenant_controlled, k.allowed_kinds
        FROM node_certs k
        WHERE k.serial = s.certificate_serial AND (k.tenant_controlled OR k.allowed_kinds IS NOT NULL)
        OFFSET 0
    ) k
),
locked AS MATERIALIZED (
    SELECT f.*, c.version AS locked_version
    FROM (
        -- Not a join: `IS TRUE` keeps it a hashed lookup, whatever the estimates say.
        SELECT f.*
        FROM found f
        WHERE ((f.node_id, f.session_epoch) IN (SELECT s.node_id, s.session_epoch FROM live s)) IS TRUE
        ORDER BY f.node_id, f.id
    ) f
    CROSS JOIN LATERAL (
        SELECT c.ctid AS version
        FROM commands c
        -- The version that was found, which is half the work of looking for it by its key again.
        WHERE c.ctid = f.version AND c.node_id = f.node_id AND c.id = f.id AND c.phase = 'p'
          AND c.attempt = f.attempt AND c.deferred = f.deferred
        FOR UPDATE SKIP LOCKED
    ) c
),
-- Of each lane what was locked without a gap from its first due command on. A command of which another transaction
-- has made a younger version since this statement began is such a gap: this one could not write it.
accepted AS MATERIALIZED (
    SELECT l.*, min(l.seq) FILTER (WHERE NOT l.deferred) OVER (PARTITION BY l.slot) AS first_seq,
           EXISTS (SELECT FROM limited)
           AND EXISTS (SELECT FROM limited t
                       WHERE t.node_id = l.node_id
                         AND (t.tenant_controlled AND l.kind = ANY ($12::text[]) OR l.kind <> ALL (t.allowed_kinds)))
               AS barred
    FROM (
        SELECT l.*, row_number() OVER (PARTITION BY l.slot ORDER BY l.place) AS rank
        FROM locked l
        WHERE l.locked_version = l.version
    ) l
    WHERE l.rank = l.place
),
-- With, of each lane, a seq below which nothing undeferred is in flight, nor will be. It is looked for once a lane, from
-- the floor on that the lane's last dispatch left, and not at all until the lane has moved away from that by a stretch.
floored AS MATERIALIZED (
    SELECT a.*,
           CASE
               WHEN a.looks THEN coalesce(max(low.seq) OVER (PARTITION BY a.slot), a.first_seq)
               ELSE a.from_floor
           END AS lane_floor
    FROM (SELECT a.*, a.from_floor = 0 OR a.first_seq >= a.from_floor + 64 AS looks FROM accepted a) a
    LEFT JOIN LATERAL (
        SELECT c.lane_floor
        FROM commands c
        WHERE a.place = 1 AND a.from_floor = 0 AND c.node_id = a.node_id AND c.lane = a.lane
          AND c.dispatched_at IS NOT NULL AND NOT c.deferred
        ORDER BY c.seq DESC
        LIMIT 1
    ) top ON true
    LEFT JOIN LATERAL (
        SELECT c.seq
        FROM commands c
        WHERE a.place = 1 AND a.looks AND c.node_id = a.node_id AND c.lane = a.lane AND c.phase = 'f' AND NOT c.deferred
          AND c.seq >= greatest(a.from_floor, top.lane_floor)
        ORDER BY c.seq
        LIMIT 1
    ) low ON true
),
-- One statement for both fates: what an UPDATE costs before its first row is more than what a row costs.
claimed AS (
    UPDATE commands c
    SET state = CASE WHEN a.barred THEN 'refused'::command_state ELSE 'dispatched' END,
        finished_at = CASE WHEN a.barred THEN compute_now() ELSE c.finished_at END,
        error = CASE WHEN a.barred THEN $13::text ELSE c.error END,
        dispatched_at = CASE WHEN a.barred THEN c.dispatched_at ELSE compute_now() END,
        dispatched_by = CASE WHEN a.barred THEN c.dispatched_by ELSE $1 END,
        lease_epoch = CASE WHEN a.barred THEN c.lease_epoch ELSE $3 END,
        session_epoch = CASE WHEN a.barred THEN c.session_epoch ELSE a.session_epoch END,
        lane_capacity = CASE WHEN a.barred THEN c.lane_capacity ELSE a.capacity END,
        lane_in_flight = CASE WHEN a.barred THEN c.lane_in_flight ELSE a.in_flight + a.place END,
        lane_floor = CASE WHEN a.barred THEN c.lane_floor WHEN NOT a.deferred THEN a.lane_floor END
    FROM floored a
    WHERE c.ctid = a.version AND c.node_id = a.node_id AND c.id = a.id
    RETURNING a.barred, c.node_id, c.id, c.attempt, c.lane, c.seq, c.kind, c.payload, c.not_after, c.session_epoch,
              NOT c.deferred AS moves_cursor, c.lane_floor,
              compute_now() - greatest(c.enqueued_at, c.not_before) AS waited
)
SELECT EXISTS (SELECT FROM lease) AS "held!", c.node_id AS "node_id?", c.id AS "id?", c.attempt AS "attempt?",
       c.lane AS "lane?", c.seq AS "seq?", c.kind AS "kind?", c.payload AS "payload?",
       unix_millis(c.not_after) AS "not_after?", c.session_epoch AS "session_epoch?",
       c.moves_cursor AS "moves_cursor?", c.lane_floor AS "lane_floor?", (extract(epoch FROM c.waited) * 1000000)::bigint AS "waited_micros?"
FROM (VALUES (1)) one (row) LEFT JOIN claimed c ON NOT c.barred
ORDER BY c.node_id, c.seq
