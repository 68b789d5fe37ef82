-- Goal: the server under test is the replicated one, and the tests' own functions are there.
-- Method: create them, and look at the settings that everything depends on.
\getenv unit ONETRIP_UNIT
CREATE SCHEMA unit;
CREATE FUNCTION unit.write_frame(name text) RETURNS bytea LANGUAGE c STRICT AS :'unit', 'unit_write_frame';
CREATE FUNCTION unit.connect_with(descriptors int) RETURNS text LANGUAGE c STRICT AS :'unit', 'unit_connect_with';
CREATE FUNCTION unit.send_behind(sent boolean) RETURNS int LANGUAGE c STRICT AS :'unit', 'unit_send_behind';
CREATE FUNCTION unit.keeps(len int) RETURNS int LANGUAGE c STRICT AS :'unit', 'unit_keeps';
CREATE FUNCTION unit.evict_last() RETURNS int LANGUAGE c AS :'unit', 'unit_evict_last';
CREATE FUNCTION unit.read_frame(bytes bytea) RETURNS text LANGUAGE c STRICT AS :'unit', 'unit_read_frame';
CREATE FUNCTION unit.decode_body(type int, body bytea) RETURNS text LANGUAGE c STRICT AS :'unit', 'unit_decode_body';
CREATE FUNCTION unit.read_prefixes(bytes bytea) RETURNS int LANGUAGE c STRICT AS :'unit', 'unit_read_prefixes';
CREATE FUNCTION unit.use_socket(path text) RETURNS void LANGUAGE c AS :'unit', 'unit_use_socket';
CREATE FUNCTION unit.use_level(level int) RETURNS void LANGUAGE c AS :'unit', 'unit_use_level';
CREATE FUNCTION unit.use_read_only(is_on boolean) RETURNS void LANGUAGE c AS :'unit', 'unit_use_read_only';
CREATE FUNCTION unit.refuse_verifiers() RETURNS void LANGUAGE c AS :'unit', 'unit_refuse_verifiers';
CREATE FUNCTION unit.operations() RETURNS SETOF text LANGUAGE c STRICT AS :'unit', 'unit_operations';
CREATE FUNCTION unit.used_sequences() RETURNS SETOF regclass LANGUAGE c STRICT AS :'unit', 'unit_used_sequences';
CREATE FUNCTION unit.write_set() RETURNS bytea LANGUAGE c STRICT AS :'unit', 'unit_write_set';
CREATE FUNCTION unit.apply(operations bytea) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_apply';
CREATE FUNCTION unit.fault(file text, sqlstate text, error int DEFAULT 0, message text DEFAULT '') RETURNS text LANGUAGE c STRICT AS :'unit', 'unit_fault';
CREATE FUNCTION unit.damage(bytes bytea, seed bigint) RETURNS bytea LANGUAGE c STRICT AS :'unit', 'unit_damage';
CREATE FUNCTION unit.lag_in_queue(pages int) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_lag_in_queue';
CREATE FUNCTION unit.limit_memory(more bigint) RETURNS void LANGUAGE c AS :'unit', 'unit_limit_memory';
CREATE FUNCTION unit.lack_memory_to_log(lack boolean) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_lack_memory_to_log';
CREATE FUNCTION unit.leave_temporary() RETURNS void LANGUAGE c AS :'unit', 'unit_leave_temporary';
CREATE FUNCTION unit.refuse_messages(refuse boolean) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_refuse_messages';
CREATE FUNCTION unit.delete_unseen(of regclass, at tid) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_delete_unseen';
CREATE FUNCTION unit.write_at_drop(statement text) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_write_at_drop';
CREATE FUNCTION unit.make_table(name text, temporary boolean) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_make_table';
CREATE FUNCTION unit.truncate(name text) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_truncate';
CREATE FUNCTION unit.skip_oids(count bigint) RETURNS void LANGUAGE c STRICT AS :'unit', 'unit_skip_oids';
SHOW default_table_access_method;
SELECT current_database() = current_setting('onetrip.database') AS replicated;
SELECT worker_running FROM onetrip.status;
