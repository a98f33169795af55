-- Sessions by node, the live ones or all last ones; a row a session, as JSON.
-- $1 node or null, $2 gateway or null, $3 true: ended ones too, $4 most rows.
SELECT row_to_json(v)::text AS "row!"
FROM (
    SELECT s.node_id, s.gateway_id, s.disconnected_at IS NULL AS live,
           coalesce(l.expires_at > compute_now(), false) AS gateway_holds_lease,
           s.session_epoch, s.lease_epoch, s.connected_at, s.disconnected_at,
           -- Liveness is written now and then only; a Hello is a sign of life too.
           greatest(v.last_seen_at, s.connected_at) AS last_seen_at,
           s.boot_id, s.machine, s.software_version, s.role, s.certificate_serial,
           (SELECT coalesce(json_agg(json_build_object('lane', a.lane, 'capacity', a.capacity) ORDER BY a.place), '[]')
            FROM unnest(s.lanes, s.lane_capacities) WITH ORDINALITY a (lane, capacity, place)) AS lanes,
           (SELECT count(*) FROM commands c WHERE c.node_id = s.node_id AND c.phase = 'f' AND NOT c.deferred)
           + (SELECT count(*) FROM commands c WHERE c.node_id = s.node_id AND c.phase = 'f' AND c.deferred) AS in_flight
    FROM node_sessions s
    LEFT JOIN node_liveness v ON v.node_id = s.node_id AND v.session_epoch = s.session_epoch
    LEFT JOIN leases l ON l.name = 'gateway:' || s.gateway_id
    WHERE s.gateway_id IS NOT NULL
      AND ($1::text IS NULL OR s.node_id = $1::text)
      AND ($2::text IS NULL OR s.gateway_id = $2::text)
      AND ($3::boolean OR s.disconnected_at IS NULL)
    ORDER BY s.node_id
    LIMIT $4::bigint
) v
