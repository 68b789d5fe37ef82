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
