-- What a renewed certificate takes over from the one before, and how a serial is written.
--
-- 1. A renewal never loosens what the old certificate was limited to: whoever issues certificates calls
--    `record_renewal`, and has no need to know the columns.
-- 2. A serial that no gateway would ever look for is refused. Rows that are there stay: they match nothing.

ALTER TABLE node_certs
    DROP CONSTRAINT node_certs_serial_check,
    ADD CONSTRAINT node_certs_serial_is_upper_case_hex_without_leading_zeros
        CHECK (serial ~ '^[1-9A-F][0-9A-F]*$') NOT VALID;

CREATE FUNCTION record_renewal(old_serial text, new_serial text, not_after timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    old node_certs;
BEGIN
    SELECT * INTO old FROM node_certs WHERE serial = old_serial FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'no certificate with the serial % is recorded', old_serial
            USING ERRCODE = 'no_data_found', HINT = 'Record it first: INSERT INTO node_certs (serial, node_id, not_after) …';
    ELSIF old.revoked_at IS NOT NULL THEN
        RAISE EXCEPTION 'the certificate with the serial % is revoked and can''t be renewed', old_serial
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO node_certs (serial, node_id, not_after, role, allowed_kinds, tenant_controlled)
    VALUES (new_serial, old.node_id, record_renewal.not_after, old.role, old.allowed_kinds, old.tenant_controlled);
END $$;

COMMENT ON FUNCTION record_renewal IS
    'Records the certificate that follows another: for the same node, with the same role, allowed_kinds and '
    'tenant_controlled. Refuses one that follows a certificate which is unknown or revoked.';
