-- Which certificates do not allow every kind of command.
--
-- 1. Partial: a dispatch asks for each session that has something due, and mostly there is none of these.

CREATE INDEX node_certs_limited ON node_certs (serial) WHERE tenant_controlled OR allowed_kinds IS NOT NULL;

COMMENT ON COLUMN node_certs.allowed_kinds IS
    'Kinds of commands that may be sent to the node under this certificate; null: all. Others end as refused.';
COMMENT ON COLUMN node_certs.tenant_controlled IS
    'Whether the tenant of the machine has the certificate''s key. Commands of the kinds that gateways are configured '
    'with as destructive (identity.destructive_kinds) then end as refused instead of being sent.';
