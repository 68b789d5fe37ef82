-- Copyright 2026 The Onetrip authors
-- SPDX-License-Identifier: Apache-2.0

\echo Use "ALTER EXTENSION onetrip UPDATE TO '0.2'" to load this file. \quit

CREATE OR REPLACE VIEW onetrip.members AS
SELECT (m ->> 'id')::integer AS node_id, m ->> 'region' AS region, m ->> 'address' AS address, m ->> 'role' AS role,
       (m ->> 'voter')::boolean AS voter, (m ->> 'leads')::boolean AS leads, m ->> 'heard' AS heard,
       pg_catalog.make_interval(secs => (m ->> 'report_age_ms')::float8 / 1000) AS report_age,
       m #>> '{report,version}' AS version, m #>> '{report,counts,version}' AS postgres_version,
       m #>> '{report,postgres,state}' AS postgres_state, (m #>> '{report,counts,sessions}')::integer AS sessions,
       COALESCE((SELECT (c ->> 'count')::bigint
                   FROM pg_catalog.jsonb_path_query(m, '$.report.counts.commits[*]') AS c
                  WHERE c ->> 'part' = 'whole'),
                CASE pg_catalog.jsonb_typeof(m #> '{report,counts}') WHEN 'object' THEN 0 END) AS commits,
       (SELECT pg_catalog.sum(l.value::bigint)::bigint
          FROM pg_catalog.jsonb_path_query(m, '$.report.counts.lost') AS lost,
               pg_catalog.jsonb_each_text(lost) AS l) AS lost,
       (m ->> 'limit_ms')::float8 AS limit_ms, (m ->> 'with_leader_ms')::float8 AS with_leader_ms,
       ARRAY(SELECT p #>> '{}' FROM pg_catalog.jsonb_path_query(m, '$.report.problems[*]') AS p) AS problems,
       m #>> '{report,counts,extension}' AS extension_version, (m #>> '{report,level_known}')::integer AS format_level
  FROM pg_catalog.jsonb_array_elements(onetrip.cluster() -> 'members') AS m;

-- ---- conflicts ----

CREATE FUNCTION onetrip.recent_conflicts_by_age(
    OUT at timestamptz, OUT kind text, OUT "table" text, OUT key text, OUT role text, OUT application text,
    OUT pid integer, OUT lost_to_region text, OUT lost_to_entry bigint, OUT ago interval)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_recent_conflicts_by_age';
COMMENT ON FUNCTION onetrip.recent_conflicts_by_age() IS
    'The last 1,000 transactions of this server that got 40001 because another one was first.';

CREATE OR REPLACE VIEW onetrip.conflicts AS
    SELECT *, pg_catalog.current_setting('onetrip.region') AS region FROM onetrip.recent_conflicts_by_age();

DROP FUNCTION onetrip.recent_conflicts();

-- ---- what a COMMIT takes ----

DROP FUNCTION onetrip.last_commit();
CREATE FUNCTION onetrip.last_commit(
    OUT transaction_id text, OUT entry bigint, OUT bytes bigint, OUT round_trips integer,
    OUT held_by text[], OUT prepare_ms float8, OUT verdict_ms float8, OUT turn_ms float8,
    OUT local_ms float8, OUT everywhere_ms float8, OUT propose_ms float8, OUT replicate_ms float8,
    OUT certify_ms float8)
    RETURNS record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_last_commit_parts';
COMMENT ON FUNCTION onetrip.last_commit() IS
    'What the last COMMIT of this session that changed something cost; nulls if there was none.';

CREATE OR REPLACE VIEW onetrip.commits AS
    SELECT part, max(up_to_here) AS count, max(part_sum_ms) / max(up_to_here) AS mean_ms,
           min(up_to_ms) FILTER (WHERE up_to_here >= 0.50 * total) AS p50_ms,
           min(up_to_ms) FILTER (WHERE up_to_here >= 0.95 * total) AS p95_ms,
           min(up_to_ms) FILTER (WHERE up_to_here >= 0.99 * total) AS p99_ms,
           max(up_to_ms) AS max_ms
      FROM (SELECT *, max(up_to_here) OVER (PARTITION BY part) AS total
              FROM onetrip.commit_histogram) AS histogram
     GROUP BY part
     ORDER BY array_position(ARRAY['prepare', 'verdict', 'propose', 'replicate', 'certify', 'turn', 'local',
                                   'everywhere', 'whole'], part);

-- ---- subscriptions ----

-- Replicated.  subid and relid are OIDs at that node; relid 0 is the subscription as a whole.
CREATE TABLE onetrip.subscription_position (
    subscription text,
    relid oid,
    node_id integer NOT NULL,
    region text NOT NULL,
    subid oid NOT NULL,
    position pg_lsn NOT NULL,
    copying text[] NOT NULL DEFAULT '{}',
    changed timestamptz NOT NULL DEFAULT pg_catalog.now(),
    PRIMARY KEY (subscription, relid)
) USING onetrip;
COMMENT ON TABLE onetrip.subscription_position IS
    'At which node each subscription is, how far it has come, and which of its tables are being copied; written with what it applies.';
GRANT SELECT ON onetrip.subscription_position TO pg_monitor;

-- Replicated.  It contains what CREATE SUBSCRIPTION was given, passwords among it.
CREATE TABLE onetrip.subscription_definition (
    subscription text PRIMARY KEY,
    owner text NOT NULL,
    connection text NOT NULL,
    publications text[] NOT NULL,
    enabled boolean NOT NULL,
    options jsonb NOT NULL,
    tables text[] NOT NULL
) USING onetrip;
-- Statistics would show in pg_stats what is in the table.
ALTER TABLE onetrip.subscription_definition ALTER connection SET STATISTICS 0, ALTER options SET STATISTICS 0;
ALTER TABLE onetrip.prepared ALTER write_set SET STATISTICS 0;
COMMENT ON TABLE onetrip.subscription_definition IS
    'How another node makes a subscription whose node is lost: what it was made with, and the tables that it follows.';

-- ---- publications ----

-- PostgreSQL's own function, under a name that is not redirected.  It has another signature from 16 on.
DO $do$
BEGIN
    IF pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN
        CREATE FUNCTION onetrip.all_publication_tables(
            VARIADIC pubname text[], OUT pubid oid, OUT relid oid, OUT attrs int2vector, OUT qual pg_node_tree)
            RETURNS SETOF record LANGUAGE internal STRICT STABLE PARALLEL SAFE AS 'pg_get_publication_tables';
        CREATE FUNCTION onetrip.publication_tables(
            VARIADIC pubname text[], OUT pubid oid, OUT relid oid, OUT attrs int2vector, OUT qual pg_node_tree)
            RETURNS SETOF record LANGUAGE sql STRICT STABLE PARALLEL SAFE
        BEGIN ATOMIC
            SELECT t.pubid, t.relid, t.attrs, t.qual FROM onetrip.all_publication_tables(VARIADIC $1) AS t
             WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = t.relid AND c.relrewrite = c.oid);
        END;
    ELSE
        CREATE FUNCTION onetrip.all_publication_tables(
            pubname text, OUT relid oid, OUT attrs int2vector, OUT qual pg_node_tree)
            RETURNS SETOF record LANGUAGE internal STRICT STABLE PARALLEL SAFE AS 'pg_get_publication_tables';
        CREATE FUNCTION onetrip.publication_tables(
            pubname text, OUT relid oid, OUT attrs int2vector, OUT qual pg_node_tree)
            RETURNS SETOF record LANGUAGE sql STRICT STABLE PARALLEL SAFE
        BEGIN ATOMIC
            SELECT t.relid, t.attrs, t.qual FROM onetrip.all_publication_tables($1) AS t
             WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = t.relid AND c.relrewrite = c.oid);
        END;
    END IF;
END
$do$;
COMMENT ON FUNCTION onetrip.all_publication_tables IS
    'What PostgreSQL itself takes for published.';
COMMENT ON FUNCTION onetrip.publication_tables IS
    'What is published, without the tables of this extension; calls to pg_get_publication_tables() are redirected here.';

-- Logical decoding leaves these tables out, as it does with the heaps that ALTER TABLE fills.
UPDATE pg_catalog.pg_class SET relrewrite = oid
 WHERE relnamespace = 'onetrip'::pg_catalog.regnamespace AND relkind = 'r';
UPDATE pg_catalog.pg_class AS toast SET relrewrite = toast.oid
  FROM pg_catalog.pg_class AS main
 WHERE main.reltoastrelid = toast.oid AND main.relnamespace = 'onetrip'::pg_catalog.regnamespace;

-- ---- traces ----

CREATE FUNCTION onetrip.traced_commits(
    after bigint DEFAULT 0, OUT number bigint, OUT transaction_id text, OUT entry bigint, OUT ended timestamptz,
    OUT prepare_us bigint, OUT verdict_us bigint, OUT turn_us bigint, OUT local_us bigint, OUT everywhere_us bigint,
    OUT whole_us bigint, OUT bytes bigint, OUT role oid, OUT application text)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_traced_commits';
COMMENT ON FUNCTION onetrip.traced_commits IS
    'The last COMMITs of this server of which the node makes traces, those after a number.';
REVOKE EXECUTE ON FUNCTION onetrip.traced_commits FROM PUBLIC;
GRANT EXECUTE ON FUNCTION onetrip.traced_commits TO pg_monitor;

-- ---- roles ----

CREATE FUNCTION onetrip.count_roles(
    OUT role oid, OUT commits bigint, OUT lost bigint, OUT rows bigint, OUT bytes bigint)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_count_roles';
COMMENT ON FUNCTION onetrip.count_roles() IS
    'What the sessions of each role have committed on this server since it started, and how often they lost.';
REVOKE EXECUTE ON FUNCTION onetrip.count_roles FROM PUBLIC;
GRANT EXECUTE ON FUNCTION onetrip.count_roles TO pg_monitor;

CREATE VIEW onetrip.roles AS
    SELECT r.rolname AS role, c.commits, c.lost, c.rows, c.bytes
      FROM onetrip.count_roles() AS c JOIN pg_catalog.pg_roles AS r ON r.oid = c.role;
COMMENT ON VIEW onetrip.roles IS
    'What the sessions of each role have committed on this server since it started, and how often they lost.';
GRANT SELECT ON onetrip.roles TO pg_monitor;

-- ---- large objects ----

CREATE FUNCTION onetrip.large_object_handler(internal) RETURNS index_am_handler
    LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'ot_large_object_handler';
COMMENT ON FUNCTION onetrip.large_object_handler(internal) IS
    'Handler of index access method onetrip_large_object.';

CREATE ACCESS METHOD onetrip_large_object TYPE INDEX HANDLER onetrip.large_object_handler;
COMMENT ON ACCESS METHOD onetrip_large_object IS
    'For an index of pg_largeobject that stores nothing: it is told of each page that is written.';

CREATE OPERATOR CLASS onetrip.large_object_ops DEFAULT FOR TYPE oid USING onetrip_large_object AS STORAGE oid;

SET LOCAL allow_system_table_mods = on;
CREATE INDEX onetrip_large_objects ON pg_catalog.pg_largeobject
    USING onetrip_large_object (loid) INCLUDE (pageno, data, pageno);
SET LOCAL allow_system_table_mods = off;
-- The last column becomes xmin, so that PostgreSQL takes every update for one that changes an indexed column.
UPDATE pg_catalog.pg_index SET indkey = '1 2 3 -2'
 WHERE indexrelid = 'pg_catalog.onetrip_large_objects'::pg_catalog.regclass;
-- It goes with the extension.
UPDATE pg_catalog.pg_depend SET deptype = 'a'
 WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass
   AND objid = 'pg_catalog.onetrip_large_objects'::pg_catalog.regclass
   AND refclassid = 'pg_catalog.pg_opclass'::pg_catalog.regclass;

-- ---- jobs ----

COMMENT ON TABLE onetrip.job_here IS
    'Indexes that this server builds by itself (CREATE INDEX and REINDEX CONCURRENTLY), and partitions whose users it waits for (DETACH CONCURRENTLY); written with the statement, and by the job worker.';

-- An error may contain values of a row, also of one that row security hides.  An index of this name may be another one
-- than the one that is told of: that has the job of the same time.
CREATE OR REPLACE VIEW onetrip.jobs AS
SELECT r.region, r.node_id, r.statement, r."table", r.index, r.state,
       p.phase || CASE WHEN p.blocks_total > 0
                       THEN pg_catalog.format(' (%s %%)', p.blocks_done * 100 / p.blocks_total) ELSE '' END AS progress,
       r.attempts, CASE WHEN pg_catalog.has_table_privilege(here.indrelid, 'SELECT')
                         AND NOT pg_catalog.row_security_active(here.indrelid) THEN r.error END AS error,
       r.since, r.changed
  FROM onetrip.job_report r
  LEFT JOIN (SELECT ARRAY[n.nspname, c.relname]::text[] AS name, i.indexrelid, i.indrelid, j.since
               FROM onetrip.job_here j
               JOIN pg_catalog.pg_index i ON i.indexrelid = j.index
               JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) AS here
    ON here.name = pg_catalog.parse_ident(r.index) AND here.since = r.since
  LEFT JOIN pg_catalog.pg_stat_progress_create_index p
    ON r.node_id = pg_catalog.current_setting('onetrip.node_id')::integer AND r.state <> 'done'
   AND p.index_relid = here.indexrelid AND p.datname = pg_catalog.current_database();
COMMENT ON VIEW onetrip.jobs IS
    'Indexes of CREATE INDEX and REINDEX CONCURRENTLY in each region: building, built, done, or failed with an error; progress of this region only. Partitions of DETACH CONCURRENTLY: waiting, or done.';
ALTER TABLE onetrip.job_here ALTER error SET STATISTICS 0;
ALTER TABLE onetrip.job_report ALTER error SET STATISTICS 0;
-- Those that 0.1 has gathered.
DELETE FROM pg_catalog.pg_statistic AS s USING pg_catalog.pg_class AS c, pg_catalog.pg_attribute AS a
 WHERE c.relnamespace = 'onetrip'::pg_catalog.regnamespace AND a.attrelid = c.oid AND a.attstattarget = 0
   AND s.starelid = a.attrelid AND s.staattnum = a.attnum;

-- ---- to compare regions ----

CREATE FUNCTION onetrip.rows_of(anyelement) RETURNS SETOF anyelement
    LANGUAGE c STABLE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_rows_of';
COMMENT ON FUNCTION onetrip.rows_of(anyelement) IS
    'The rows of the table whose row type the argument has, read without a plan.';
REVOKE ALL ON FUNCTION onetrip.rows_of(anyelement) FROM PUBLIC;

-- ---- for the node ----

CREATE FUNCTION onetrip.row_text(objects bytea, relation bytea, changed bytea, "row" bytea) RETURNS text
    LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_row_text';
COMMENT ON FUNCTION onetrip.row_text(bytea, bytea, bytea, bytea) IS
    'The values of a row in a write set, as the node shows them when an entry is left out.';
REVOKE ALL ON FUNCTION onetrip.row_text(bytea, bytea, bytea, bytea) FROM PUBLIC;

-- ---- what became of large transactions that were written before they were decided ----

CREATE FUNCTION onetrip.count_early_writes(OUT outcome text, OUT count bigint)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_count_early_writes';
COMMENT ON FUNCTION onetrip.count_early_writes() IS
    'How often this server wrote a large transaction of another region early, since it started, and what became of that.';

CREATE VIEW onetrip.early_writes AS SELECT * FROM onetrip.count_early_writes();
COMMENT ON VIEW onetrip.early_writes IS
    'How often this server wrote a large transaction of another region early, since it started, and what became of that.';
GRANT SELECT ON onetrip.early_writes TO PUBLIC;
