-- The newest migration that has been run whole.
SELECT coalesce(max(m.version), 0) AS "version!" FROM _sqlx_migrations m WHERE m.success
