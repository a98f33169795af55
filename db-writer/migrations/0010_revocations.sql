-- What gateways need to hear of revocations.
--
-- 1. revocation_changed_at says when a certificate's revocation was set or cleared last, whatever date revoked_at
--    has: gateways look at what changed since they looked. A trigger sets it, so that no way to a revocation
--    forgets it, and pokes all gateways when the transaction commits.
-- 2. Both indexes are partial: a certificate that was never revoked stands in neither.

ALTER TABLE node_certs ADD COLUMN revocation_changed_at timestamptz;

CREATE INDEX node_certs_changed ON node_certs (revocation_changed_at, serial) WHERE revocation_changed_at IS NOT NULL;
CREATE INDEX node_certs_revoked ON node_certs (serial) WHERE revoked_at IS NOT NULL;

CREATE FUNCTION node_certs_note_revocation() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    NEW.revocation_changed_at := compute_now();
    -- The same for every row: of one transaction it is heard once.
    IF lower(coalesce(nullif(current_setting('gateway.notify', true), ''), 'on')) NOT IN ('off', 'false', 'no', '0') THEN
        PERFORM pg_notify('gateway_certs', '');
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER node_certs_note_new BEFORE INSERT ON node_certs FOR EACH ROW
    WHEN (NEW.revoked_at IS NOT NULL) EXECUTE FUNCTION node_certs_note_revocation();
CREATE TRIGGER node_certs_note_change BEFORE UPDATE ON node_certs FOR EACH ROW
    WHEN (NEW.revoked_at IS DISTINCT FROM OLD.revoked_at OR NEW.revoked_reason IS DISTINCT FROM OLD.revoked_reason)
    EXECUTE FUNCTION node_certs_note_revocation();

COMMENT ON TABLE node_certs IS
    'What certificates of nodes may be used for, by serial (upper-case hex without leading zeros). Whoever issues one '
    'records it here: the node that it is for, its role, when it ends, whether the machine''s tenant controls it. To '
    'revoke it, set revoked_at, and revoked_reason, which its node is told; to admit it again, set both to null. '
    'Gateways hear of either at once.';
