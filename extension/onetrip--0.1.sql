-- Copyright 2026 The Onetrip authors
-- SPDX-License-Identifier: Apache-2.0

\echo Use "CREATE EXTENSION onetrip" to load this file. \quit

-- Text travels in the database's encoding, so it must be the same in all regions; `onetrip init` creates databases with UTF8.
DO $$
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION 'onetrip needs a database with the encoding UTF8, and % has %',
            pg_catalog.current_database(), pg_catalog.getdatabaseencoding()
            USING ERRCODE = 'feature_not_supported', HINT = 'Create the database with ENCODING ''UTF8'' TEMPLATE template0.';
    END IF;
END $$;

GRANT USAGE ON SCHEMA onetrip TO PUBLIC;

-- The role that may, besides superusers, call functions that can delay or abort others' transactions.  Roles belong to the
-- server, so the extension in another database may have created it.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'onetrip_admin') THEN
        CREATE ROLE onetrip_admin NOLOGIN;
    END IF;
END $$;

-- ---- the table access method ----

CREATE FUNCTION onetrip.access_method_handler(internal) RETURNS table_am_handler
    LANGUAGE c STRICT AS 'MODULE_PATHNAME', 'ot_access_method_handler';
COMMENT ON FUNCTION onetrip.access_method_handler(internal) IS
    'Handler of table access method onetrip: heap, with changes captured.';

CREATE ACCESS METHOD onetrip TYPE TABLE HANDLER onetrip.access_method_handler;
COMMENT ON ACCESS METHOD onetrip IS
    'PostgreSQL''s heap; its rows are the same in every region.';

-- ---- position in the log ----

CREATE FUNCTION onetrip.position() RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_position';
COMMENT ON FUNCTION onetrip.position() IS
    'Applied index: every entry of the log up to it is visible here.';

CREATE FUNCTION onetrip.wait_for("position" bigint, timeout interval DEFAULT NULL) RETURNS bigint
    LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_wait_for';
COMMENT ON FUNCTION onetrip.wait_for(bigint, interval) IS
    'Waits until the applied index is at least this position, and returns it; an error if the timeout is over before.';

CREATE FUNCTION onetrip.advance() RETURNS void
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_advance';
COMMENT ON FUNCTION onetrip.advance() IS
    'Makes this transaction an entry of the log even if it changes nothing.';

CREATE FUNCTION onetrip.outcome(transaction_id text) RETURNS text
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_outcome';
COMMENT ON FUNCTION onetrip.outcome(text) IS
    'What became of a transaction whose COMMIT ended with SQLSTATE 08007: committed at N, left out at N, aborted, unknown (not in the log so far) or forgotten.';

CREATE FUNCTION onetrip.outcome(transaction_id text, settle boolean) RETURNS text
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_outcome_settle';
COMMENT ON FUNCTION onetrip.outcome(text, boolean) IS
    'What became of a transaction; with settle, a transaction that is not in the log yet can never commit, so that the answer is final.';
-- It can abort a transaction whose COMMIT is under way, no matter whose it is.
REVOKE ALL ON FUNCTION onetrip.outcome(text, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION onetrip.outcome(text, boolean) TO onetrip_admin;

CREATE FUNCTION onetrip.current_transaction_id() RETURNS text
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_current_transaction_id';
COMMENT ON FUNCTION onetrip.current_transaction_id() IS
    'The id under which onetrip.outcome() knows this transaction, for a client whose connection may break during COMMIT.';

CREATE FUNCTION onetrip.export_snapshot_at("position" bigint) RETURNS text
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_export_snapshot_at';
COMMENT ON FUNCTION onetrip.export_snapshot_at(bigint) IS
    'Waits for the first entry at or after a future position, and exports a snapshot of exactly that state.';
-- It delays all commits in this server for a moment.
REVOKE ALL ON FUNCTION onetrip.export_snapshot_at(bigint) FROM PUBLIC;

CREATE FUNCTION onetrip.rehearse(base bigint, write_set bytea) RETURNS void
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_rehearse';
COMMENT ON FUNCTION onetrip.rehearse(bigint, bytea) IS
    'Carries out what another region is about to commit, and rolls it back. Called by the node.';
REVOKE ALL ON FUNCTION onetrip.rehearse(bigint, bytea) FROM PUBLIC;
REVOKE ALL ON FUNCTION onetrip.advance() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION onetrip.export_snapshot_at(bigint) TO onetrip_admin;
GRANT EXECUTE ON FUNCTION onetrip.advance() TO onetrip_admin;

-- ---- comparing regions ----

CREATE FUNCTION onetrip.row_hash(record) RETURNS bigint
    LANGUAGE c STRICT STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ot_row_hash';
COMMENT ON FUNCTION onetrip.row_hash(record) IS
    'A hash of the bytes of a row''s values, the same in every region that has this row.';

CREATE FUNCTION onetrip.column_hashes(record) RETURNS bigint[]
    LANGUAGE c STRICT STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ot_column_hashes';
COMMENT ON FUNCTION onetrip.column_hashes(record) IS
    'The same for each column of the row: an array of hashes.';

CREATE FUNCTION onetrip.rows_not_in_index(index regclass) RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_rows_not_in_index';
COMMENT ON FUNCTION onetrip.rows_not_in_index(regclass) IS
    'How many rows of its table an index does not find; null for kinds of index that cannot be checked.';
-- It reads a whole table, and tells about tables that the caller may not read.
REVOKE ALL ON FUNCTION onetrip.rows_not_in_index(regclass) FROM PUBLIC;

-- ---- this server ----

CREATE FUNCTION onetrip.local_status(
    OUT region text, OUT node_id integer, OUT applied bigint, OUT durable bigint,
    OUT applying bigint, OUT worker_running boolean, OUT proposals bigint,
    OUT evictions bigint, OUT handovers bigint, OUT failing bigint, OUT failure text,
    OUT applied_entries bigint, OUT apply_transactions bigint)
    RETURNS record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_local_status';
COMMENT ON FUNCTION onetrip.local_status() IS
    'This server: positions in the log, and counts since it started.';

CREATE VIEW onetrip.status AS SELECT * FROM onetrip.local_status();
COMMENT ON VIEW onetrip.status IS
    'This server: positions in the log, and counts since it started.';
GRANT SELECT ON onetrip.status TO PUBLIC;

CREATE FUNCTION onetrip.recent_conflicts(
    OUT at timestamptz, OUT kind text, OUT "table" text, OUT key text, OUT role text, OUT application text,
    OUT pid integer, OUT lost_to_region text, OUT lost_to_entry bigint)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_recent_conflicts';
COMMENT ON FUNCTION onetrip.recent_conflicts() IS
    'The last 1,000 transactions of this server that got 40001 because another one was first.';

CREATE VIEW onetrip.conflicts AS
    SELECT *, pg_catalog.clock_timestamp() - at AS ago, pg_catalog.current_setting('onetrip.region') AS region
      FROM onetrip.recent_conflicts();
COMMENT ON VIEW onetrip.conflicts IS
    'The last 1,000 transactions of this server that got 40001 because another one was first.';
GRANT SELECT ON onetrip.conflicts TO PUBLIC;

CREATE FUNCTION onetrip.count_conflicts(
    OUT "table" text, OUT commits bigint, OUT lost_at_commit bigint, OUT too_old bigint,
    OUT evicted bigint, OUT reserved bigint)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_count_conflicts';
COMMENT ON FUNCTION onetrip.count_conflicts() IS
    'How many transactions of this server changed a table and committed, or lost because of it, since the server started.';

CREATE VIEW onetrip.conflicts_by_table AS
    SELECT *, (lost_at_commit + too_old + evicted + reserved)::float8
              / nullif(commits + lost_at_commit + too_old + evicted + reserved, 0) AS lost_share
      FROM onetrip.count_conflicts();
COMMENT ON VIEW onetrip.conflicts_by_table IS
    'How many transactions of this server changed a table and committed, or lost because of it, since the server started.';
GRANT SELECT ON onetrip.conflicts_by_table TO PUBLIC;

CREATE FUNCTION onetrip.count_crossings(OUT cause text, OUT count bigint)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_count_crossings';
COMMENT ON FUNCTION onetrip.count_crossings() IS
    'How often something on this server had to ask other regions since the server started, by cause.';

CREATE VIEW onetrip.crossings AS SELECT * FROM onetrip.count_crossings();
COMMENT ON VIEW onetrip.crossings IS
    'How often something on this server had to ask other regions since the server started, by cause.';
GRANT SELECT ON onetrip.crossings TO PUBLIC;

CREATE FUNCTION onetrip.count_commits(
    OUT part text, OUT up_to_ms float8, OUT count bigint, OUT part_sum_ms float8)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_count_commits';
COMMENT ON FUNCTION onetrip.count_commits() IS
    'How long the COMMITs of this server took since it started, as histograms by part.';

CREATE VIEW onetrip.commit_histogram AS
    SELECT part, up_to_ms, count,
           (sum(count) OVER (PARTITION BY part ORDER BY up_to_ms))::bigint AS up_to_here, part_sum_ms
      FROM onetrip.count_commits();
COMMENT ON VIEW onetrip.commit_histogram IS
    'How many COMMITs of this server took how long since it started, by part.';
GRANT SELECT ON onetrip.commit_histogram TO PUBLIC;

CREATE VIEW onetrip.commits AS
    SELECT part, max(up_to_here) AS count, max(part_sum_ms) / max(up_to_here) AS mean_ms,
           min(up_to_ms) FILTER (WHERE up_to_here >= 0.50 * total) AS p50_ms,
           min(up_to_ms) FILTER (WHERE up_to_here >= 0.95 * total) AS p95_ms,
           min(up_to_ms) FILTER (WHERE up_to_here >= 0.99 * total) AS p99_ms,
           max(up_to_ms) AS max_ms
      FROM (SELECT *, max(up_to_here) OVER (PARTITION BY part) AS total
              FROM onetrip.commit_histogram) AS histogram
     GROUP BY part
     ORDER BY array_position(ARRAY['prepare', 'verdict', 'turn', 'local', 'everywhere', 'whole'], part);
COMMENT ON VIEW onetrip.commits IS
    'How long the COMMITs of this server took since it started, by part.';
GRANT SELECT ON onetrip.commits TO PUBLIC;

-- ---- the whole cluster ----

CREATE FUNCTION onetrip.cluster() RETURNS jsonb
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_cluster_now';
COMMENT ON FUNCTION onetrip.cluster() IS
    'How the whole cluster is now, as this region''s node sees it, which asks the others: as GET /cluster of the node.';
-- It tells addresses and folders of machines.
REVOKE ALL ON FUNCTION onetrip.cluster() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION onetrip.cluster() TO pg_monitor;

CREATE VIEW onetrip.members AS
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
       ARRAY(SELECT p #>> '{}' FROM pg_catalog.jsonb_path_query(m, '$.report.problems[*]') AS p) AS problems
  FROM pg_catalog.jsonb_array_elements(onetrip.cluster() -> 'members') AS m;
COMMENT ON VIEW onetrip.members IS
    'The members of the cluster: what each is, whether it answers now, and what it said last of itself.';
GRANT SELECT ON onetrip.members TO pg_monitor;

CREATE VIEW onetrip.links AS
SELECT (one ->> 'id')::integer AS node_id, one ->> 'region' AS region,
       (other ->> 'id')::integer AS to_node_id, other ->> 'region' AS to_region,
       (SELECT (r ->> 'ms')::float8
          FROM pg_catalog.jsonb_array_elements(cluster -> 'round_trips') AS r
         WHERE r -> 'from' = LEAST(one -> 'id', other -> 'id')
           AND r -> 'to' = GREATEST(one -> 'id', other -> 'id')) AS round_trip_ms,
       (SELECT (p ->> 'connected')::boolean
          FROM pg_catalog.jsonb_path_query(one, '$.report.peers[*]') AS p
         WHERE p -> 'id' = other -> 'id' AND one ->> 'heard' = 'now') AS connected
  FROM onetrip.cluster() AS cluster,
       pg_catalog.jsonb_array_elements(cluster -> 'members') AS one,
       pg_catalog.jsonb_array_elements(cluster -> 'members') AS other
 WHERE one -> 'id' <> other -> 'id';
COMMENT ON VIEW onetrip.links IS
    'The ways between members: the round trip, and whether the first is connected to the other.';
GRANT SELECT ON onetrip.links TO pg_monitor;

CREATE VIEW onetrip.lag AS
SELECT (m ->> 'id')::integer AS node_id, m ->> 'region' AS region, (m ->> 'applied')::bigint AS applied,
       (m ->> 'durable')::bigint AS durable, (m ->> 'lag_entries')::bigint AS entries,
       pg_catalog.make_interval(secs => (m ->> 'lag_ms')::float8 / 1000) AS behind,
       (m ->> 'caught_up')::boolean AS caught_up, m ->> 'heard' AS heard
  FROM pg_catalog.jsonb_array_elements(onetrip.cluster() -> 'members') AS m
 WHERE m ->> 'role' <> 'witness';
COMMENT ON VIEW onetrip.lag IS
    'How far each region''s server is behind what is committed in the cluster, in entries and in time.';
GRANT SELECT ON onetrip.lag TO pg_monitor;

CREATE VIEW onetrip.row_lock_waits AS
WITH member AS MATERIALIZED (
         SELECT m ->> 'region' AS region, m -> 'report' AS report
           FROM pg_catalog.jsonb_array_elements(onetrip.cluster() -> 'members') AS m
          WHERE m ->> 'heard' = 'now'),
     session AS (
         SELECT member.region, s ->> 'transaction' AS transaction_id, (s ->> 'pid')::integer AS pid,
                s ->> 'table' AS "table", (s ->> 'waits_for')::integer AS locks,
                pg_catalog.make_interval(secs => (s ->> 'waiting_ms')::float8 / 1000) AS waiting
           FROM member, pg_catalog.jsonb_path_query(member.report, '$.lock_sessions[*]') AS s)
SELECT own.region, own.pid, l ->> 'transaction' AS transaction_id, own."table", (l ->> 'key')::bigint AS hash,
       l ->> 'mode' AS mode, own.locks, own.waiting,
       other.region AS behind_region, other.pid AS behind_pid, l ->> 'behind' AS behind_transaction_id
  FROM member
 CROSS JOIN pg_catalog.jsonb_path_query(member.report, '$.lock_line[*]') WITH ORDINALITY AS line(l, place)
  LEFT JOIN session AS own ON own.transaction_id = l ->> 'transaction'
  LEFT JOIN session AS other ON other.transaction_id = l ->> 'behind'
 ORDER BY line.place;
COMMENT ON VIEW onetrip.row_lock_waits IS
    'Who waits in line for row locks (onetrip.concurrency = locking), for how long, and behind whom, in all regions.';
GRANT SELECT ON onetrip.row_lock_waits TO pg_monitor;

CREATE FUNCTION onetrip.last_commit(
    OUT transaction_id text, OUT entry bigint, OUT bytes bigint, OUT round_trips integer,
    OUT held_by text[], OUT prepare_ms float8, OUT verdict_ms float8, OUT turn_ms float8,
    OUT local_ms float8, OUT everywhere_ms float8)
    RETURNS record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_last_commit';
COMMENT ON FUNCTION onetrip.last_commit() IS
    'What the last COMMIT of this session that changed something cost; nulls if there was none.';

-- Entries that were left out because of `onetrip skip`.  Each server keeps its own table, as it keeps its own position; the
-- contents are not replicated as rows.
CREATE TABLE onetrip.left_out (
    log_index bigint PRIMARY KEY,
    transaction_id text NOT NULL,
    region text NOT NULL,
    at timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
COMMENT ON TABLE onetrip.left_out IS
    'Entries of the log that were left out in every region (onetrip skip); written by the apply worker.';
GRANT SELECT ON onetrip.left_out TO PUBLIC;

-- ---- prepared transactions ----

-- What transactions that are prepared in the cluster are going to change.  Each server keeps its own table, in step with the
-- log; the contents are not replicated as rows.  It contains rows of tables that a role may not be allowed to read.
CREATE TABLE onetrip.prepared (
    gid text COLLATE "C" PRIMARY KEY,
    owner oid NOT NULL,
    region text NOT NULL,
    prepared timestamptz NOT NULL,
    log_index bigint NOT NULL,
    write_set bytea NOT NULL
) USING heap;
ALTER TABLE onetrip.prepared ALTER COLUMN write_set SET STORAGE EXTERNAL;
COMMENT ON TABLE onetrip.prepared IS
    'Transactions that are prepared and neither committed nor rolled back; written by the apply worker.';

CREATE VIEW onetrip.prepared_xacts AS
    SELECT p.gid,
           pg_catalog.pg_get_userbyid(p.owner) AS owner,
           p.region,
           pg_catalog.current_database() AS database,
           p.prepared,
           p.log_index,
           pg_catalog.octet_length(p.write_set) AS bytes
      FROM onetrip.prepared AS p;
COMMENT ON VIEW onetrip.prepared_xacts IS
    'Transactions that are prepared in the cluster; COMMIT PREPARED and ROLLBACK PREPARED work in every region.';
GRANT SELECT ON onetrip.prepared_xacts TO PUBLIC;

-- PostgreSQL's own function, under a name that is not redirected.
CREATE FUNCTION onetrip.local_prepared_xact(
    OUT transaction xid, OUT gid text, OUT prepared timestamptz, OUT ownerid oid, OUT dbid oid)
    RETURNS SETOF record LANGUAGE internal STRICT VOLATILE PARALLEL SAFE AS 'pg_prepared_xact';
COMMENT ON FUNCTION onetrip.local_prepared_xact() IS
    'Transactions that PostgreSQL itself has prepared on this server, which have used no onetrip table.';

CREATE FUNCTION onetrip.pg_prepared_xact(
    OUT transaction xid, OUT gid text, OUT prepared timestamptz, OUT ownerid oid, OUT dbid oid)
    RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT l.transaction, l.gid, l.prepared, l.ownerid, l.dbid FROM onetrip.local_prepared_xact() AS l
    UNION ALL
    SELECT '0'::xid, p.gid, p.prepared, p.owner, d.oid
      FROM onetrip.prepared AS p, pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database();
END;
COMMENT ON FUNCTION onetrip.pg_prepared_xact() IS
    'What pg_prepared_xacts shows; calls to pg_prepared_xact() are redirected here.';

-- ---- jobs ----

-- Indexes of CREATE INDEX CONCURRENTLY that this server is to build, or has built.  Each server keeps its own table, with the
-- OIDs that it has given.
CREATE TABLE onetrip.job_here (
    index oid PRIMARY KEY,
    statement text NOT NULL,
    search_path text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    error text,
    sqlstate text,
    since timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
COMMENT ON TABLE onetrip.job_here IS
    'Indexes that this server builds by itself (CREATE INDEX CONCURRENTLY); written with the statement, and by the job worker.';

-- What the regions tell each other about their jobs: replicated, and each node writes its own rows only.
CREATE TABLE onetrip.job_report (
    node_id integer,
    index text,
    region text NOT NULL,
    "table" text NOT NULL,
    statement text NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL,
    error text,
    since timestamptz NOT NULL,
    changed timestamptz NOT NULL DEFAULT pg_catalog.now(),
    PRIMARY KEY (node_id, index)
) USING onetrip;
COMMENT ON TABLE onetrip.job_report IS
    'What the regions last told about their jobs; written by the job workers.';

-- An error may contain values of a row.
CREATE VIEW onetrip.jobs AS
SELECT r.region, r.node_id, r.statement, r."table", r.index, r.state,
       p.phase || CASE WHEN p.blocks_total > 0
                       THEN pg_catalog.format(' (%s %%)', p.blocks_done * 100 / p.blocks_total) ELSE '' END AS progress,
       r.attempts, CASE WHEN pg_catalog.has_table_privilege(here.indrelid, 'SELECT') THEN r.error END AS error,
       r.since, r.changed
  FROM onetrip.job_report r
  LEFT JOIN (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, i.indexrelid, i.indrelid
               FROM pg_catalog.pg_index i
               JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace) AS here ON here.name = r.index
  LEFT JOIN pg_catalog.pg_stat_progress_create_index p
    ON r.node_id = pg_catalog.current_setting('onetrip.node_id')::integer AND r.state <> 'done'
   AND p.index_relid = here.indexrelid AND p.datname = pg_catalog.current_database();
COMMENT ON VIEW onetrip.jobs IS
    'Indexes of CREATE INDEX CONCURRENTLY in each region: building, done, or failed with an error; progress of this region only.';
GRANT SELECT ON onetrip.jobs TO PUBLIC;

-- ---- this transaction ----

CREATE FUNCTION onetrip.pending_keys(
    OUT "table" regclass, OUT mode text, OUT hash bigint, OUT base bigint)
    RETURNS SETOF record
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_pending_keys';
COMMENT ON FUNCTION onetrip.pending_keys() IS
    'The keys with which this transaction will be certified, so far; COMMIT adds the tables that it holds locks on.';

CREATE FUNCTION onetrip.pending_bytes() RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_pending_bytes';
COMMENT ON FUNCTION onetrip.pending_bytes() IS
    'Size of the changes that COMMIT will send to the other regions, so far.';

-- ---- notifications ----

-- Not STRICT: as in pg_notify(), a payload of NULL is an empty one.
CREATE FUNCTION onetrip.pg_notify(text, text) RETURNS void
    LANGUAGE c VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'ot_notify';
COMMENT ON FUNCTION onetrip.pg_notify(text, text) IS
    'pg_notify() for every region; calls to pg_notify() are redirected here.';

-- ---- sequences ----

CREATE FUNCTION onetrip.setval(regclass, bigint) RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_setval';
COMMENT ON FUNCTION onetrip.setval(regclass, bigint) IS
    'setval() for every region; calls to setval() are redirected here.';

CREATE FUNCTION onetrip.setval(regclass, bigint, boolean) RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_setval';
COMMENT ON FUNCTION onetrip.setval(regclass, bigint, boolean) IS
    'setval() for every region; calls to setval() are redirected here.';

CREATE FUNCTION onetrip.nextval(regclass) RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'ot_nextval';
COMMENT ON FUNCTION onetrip.nextval(regclass) IS
    'nextval(); on a read replica, calls to nextval() are redirected here, and it works for temporary sequences only.';

CREATE FUNCTION onetrip.sequence_last_value(regclass) RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ot_sequence_last_value';
COMMENT ON FUNCTION onetrip.sequence_last_value(regclass) IS
    'pg_sequence_last_value(), calls to which are redirected here.';

CREATE FUNCTION onetrip.sequence_defined(sequence oid, field text, otherwise bigint) RETURNS bigint
    LANGUAGE c STRICT STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ot_sequence_defined';
COMMENT ON FUNCTION onetrip.sequence_defined(oid, text, bigint) IS
    'A number of the sequence''s definition, as its owner wrote it: start, increment, minimum, maximum or cache.';

CREATE FUNCTION onetrip.sequence_share_here(sequence oid, field text) RETURNS bigint
    LANGUAGE c STRICT STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'ot_sequence_share_here';
COMMENT ON FUNCTION onetrip.sequence_share_here(oid, text) IS
    'A number of this node''s share of the sequence: start, increment, minimum, maximum or cache.';

CREATE VIEW onetrip.sequence_definitions AS
SELECT s.seqrelid,
       s.seqtypid,
       onetrip.sequence_defined(s.seqrelid, 'start', s.seqstart) AS seqstart,
       onetrip.sequence_defined(s.seqrelid, 'increment', s.seqincrement) AS seqincrement,
       onetrip.sequence_defined(s.seqrelid, 'maximum', s.seqmax) AS seqmax,
       onetrip.sequence_defined(s.seqrelid, 'minimum', s.seqmin) AS seqmin,
       onetrip.sequence_defined(s.seqrelid, 'cache', s.seqcache) AS seqcache,
       s.seqcycle
FROM pg_catalog.pg_sequence s;
COMMENT ON VIEW onetrip.sequence_definitions IS
    'pg_sequence with definitions as their owners wrote them; it takes the place of pg_sequence in queries.';
GRANT SELECT ON onetrip.sequence_definitions TO PUBLIC;

CREATE VIEW onetrip.sequences AS
SELECT n.nspname AS schema_name,
       c.relname AS sequence_name,
       pg_catalog.format_type(s.seqtypid, NULL) AS data_type,
       s.seqstart AS start_value,
       s.seqmin AS minimum_value,
       s.seqmax AS maximum_value,
       s.seqincrement AS increment,
       s.seqcycle AS cycles,
       s.seqcache AS cache_size,
       onetrip.sequence_share_here(s.seqrelid, 'start') AS start_here,
       onetrip.sequence_share_here(s.seqrelid, 'increment') AS increment_here
FROM onetrip.sequence_definitions s
JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relpersistence <> 't';
COMMENT ON VIEW onetrip.sequences IS
    'Sequences as their owners defined them, and this node''s share: the values from start_here in steps of increment_here.';
GRANT SELECT ON onetrip.sequences TO PUBLIC;
