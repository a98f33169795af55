-- Writes what the Hellos decided, and reads what their answers need.
-- $1 gateway, $2 lease epoch; one element a session in $3 node, $4 boot id, $5 machine, $6 version,
-- $7 role, $8 serial, $9 journal or '', $10 its lanes and $11 their capacities, as array literals in
-- the Hello's order; one element a command that changes in $12 node, $13 id, $14 state, $15 attempt,
-- $16 whether it is sent again; one element a node that moved in $17 node, $18 serial, $19 machines and $20 boots
-- that it left, $21 when, $22 when it returned, each of these as an array literal; one element a certificate that
-- two machines use in $23 node, $24 serial, $25 why it is revoked. Its node's session ends with it. $26 is the error
-- of commands that are refused since the certificate does not allow their kind.
WITH asked AS MATERIALIZED (
    SELECT a.slot, a.node_id COLLATE "C" AS node_id, a.boot_id, a.machine, a.version, a.role, a.serial,
           a.journal COLLATE "C" AS journal, a.lanes::text[] AS lanes, a.capacities::integer[] AS capacities
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
                $11::text[])
        WITH ORDINALITY a (node_id, boot_id, machine, version, role, serial, journal, lanes, capacities, slot)
),
looked AS MATERIALIZED (
    SELECT a.*, l.cursors, l.has_pending
    FROM asked a
    CROSS JOIN LATERAL (
        SELECT array_agg(coalesce(top.seq, 0) ORDER BY l.place) AS cursors,
               bool_or(pending.found IS NOT NULL) AS has_pending
        FROM unnest(a.lanes) WITH ORDINALITY l (lane, place)
        LEFT JOIN LATERAL (
            SELECT c.seq
            FROM commands c
            WHERE c.node_id = a.node_id AND c.lane = l.lane AND c.dispatched_at IS NOT NULL AND NOT c.deferred
            ORDER BY c.seq DESC
            LIMIT 1
        ) top ON true
        LEFT JOIN LATERAL (
            (SELECT true AS found
             FROM commands c
             WHERE c.node_id = a.node_id AND c.lane = l.lane AND c.phase = 'p' AND NOT c.deferred
               AND c.seq > coalesce(top.seq, 0)
             LIMIT 1)
            UNION ALL
            (SELECT true
             FROM commands c
             WHERE c.node_id = a.node_id AND c.lane = l.lane AND c.phase = 'p' AND c.deferred
             LIMIT 1)
            LIMIT 1
        ) pending ON true
    ) l
),
bumped AS (
    UPDATE node_sessions s
    SET gateway_id = $1::text, session_epoch = s.session_epoch + 1, lease_epoch = $2::bigint,
        boot_id = a.boot_id, machine = a.machine, software_version = a.version, role = a.role,
        certificate_serial = a.serial, lanes = a.lanes, lane_capacities = a.capacities,
        connected_at = compute_now(), disconnected_at = NULL
    FROM looked a
    WHERE s.node_id = a.node_id
    RETURNING a.slot, s.node_id, s.session_epoch, a.boot_id, a.journal, a.cursors, a.has_pending
),
told AS (
    INSERT INTO outbox (kind, node_id, body)
    SELECT 'node.connected', b.node_id,
           jsonb_build_object('gateway', $1, 'session_epoch', b.session_epoch, 'boot_id', b.boot_id)
    FROM bumped b
),
moved AS (
    INSERT INTO node_moves AS m (node_id, certificate_serial, machines, boots, left_at, returned_at)
    SELECT a.node_id, a.serial, a.machines::bigint[], a.boots::bigint[], a.left_at::bigint[], a.returned_at::bigint[]
    FROM unnest($17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[])
        a (node_id, serial, machines, boots, left_at, returned_at)
    ON CONFLICT (node_id) DO UPDATE
    SET certificate_serial = excluded.certificate_serial, machines = excluded.machines, boots = excluded.boots,
        left_at = excluded.left_at, returned_at = excluded.returned_at
),
duplicates AS MATERIALIZED (
    SELECT a.node_id COLLATE "C" AS node_id, a.serial COLLATE "C" AS serial, a.reason, s.session_epoch,
           s.gateway_id IS NOT NULL AND s.disconnected_at IS NULL AS connected, s.gateway_id
    FROM unnest($23::text[], $24::text[], $25::text[]) a (node_id, serial, reason)
    CROSS JOIN LATERAL (
        SELECT s.session_epoch, s.gateway_id, s.disconnected_at FROM node_sessions s WHERE s.node_id = a.node_id OFFSET 0
    ) s
),
revoked AS (
    INSERT INTO node_certs AS k (serial, node_id, revoked_at, revoked_reason)
    SELECT d.serial, d.node_id, compute_now(), d.reason FROM duplicates d ORDER BY d.serial
    ON CONFLICT (serial) DO UPDATE
    SET revoked_at = excluded.revoked_at, revoked_reason = excluded.revoked_reason
),
ended AS (
    UPDATE node_sessions s
    SET session_epoch = s.session_epoch + 1, disconnected_at = coalesce(s.disconnected_at, compute_now())
    FROM duplicates d
    WHERE s.node_id = d.node_id
),
told_of_duplicates AS (
    INSERT INTO outbox (kind, node_id, body)
    SELECT 'node.quarantined', d.node_id,
           jsonb_build_object('gateway', $1, 'certificate_serial', d.serial, 'reason', d.reason)
    FROM duplicates d
    UNION ALL
    SELECT 'node.disconnected', d.node_id,
           jsonb_build_object('gateway', d.gateway_id, 'session_epoch', d.session_epoch, 'reason', 'quarantined')
    FROM duplicates d
    WHERE d.connected
),
changed AS (
    UPDATE commands c
    SET state = a.state, attempt = a.attempt,
        -- Adopted: the lane's order is not to be inferred from it.
        deferred = c.deferred OR c.phase <> 'f',
        dispatched_at = coalesce(c.dispatched_at, compute_now()),
        accepted_at = CASE WHEN a.state = 'accepted' THEN coalesce(c.accepted_at, compute_now()) ELSE c.accepted_at END,
        started_at = CASE WHEN a.state = 'running' THEN coalesce(c.started_at, compute_now()) ELSE c.started_at END,
        finished_at = CASE WHEN a.state >= 'succeeded' THEN compute_now() END,
        error = CASE WHEN a.state = 'refused' THEN $26::text ELSE c.error END,
        replays = c.replays + a.again::integer,
        replayed_at = CASE WHEN a.again THEN compute_now() ELSE c.replayed_at END
    FROM unnest($12::text[], $13::uuid[], ($14::text[])::command_state[], $15::integer[], $16::boolean[])
        a (node_id, id, state, attempt, again)
    WHERE c.node_id = a.node_id AND c.id = a.id
)
SELECT b.slot AS "slot!", b.session_epoch AS "session_epoch!", unix_millis(compute_now()) AS "server_time!",
       coalesce(j.acked_seq, 0) AS "journal_acked!", coalesce(b.cursors, '{}') AS "cursors!",
       coalesce(b.has_pending, false) AS "has_pending!"
FROM bumped b
LEFT JOIN LATERAL (
    SELECT greatest(j.acked_seq, e.seq) AS acked_seq
    FROM journals j
    LEFT JOIN LATERAL (
        SELECT e.seq FROM events e
        WHERE e.node_id = j.node_id AND e.journal_id = j.journal_id
        ORDER BY e.seq DESC
        LIMIT 1
    ) e ON true
    WHERE j.node_id = b.node_id AND j.journal_id = b.journal
) j ON true
ORDER BY b.slot
