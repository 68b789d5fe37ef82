//! Statements, drawn: templates with places for names, types and expressions.
//!
//! Names come from small pools, so that statements meet: one that makes what another uses, renames or drops.  Many are refused by
//! the server, which is fine; what succeeds must come out alike.  Tables with contents of each region's own (unlogged, heap) are
//! left out: a statement that checks their rows may fail in one region alone, which is a documented limit.
//!
//! A round has some columns `v1`, `v2`, ... each of a type of its own, out of all that there are; a type or a value that follows
//! such a column in a template is that column's, drawn by the generator of [`crate::values`].

use crate::torture::random::Random;
use crate::trial::sql::quoted;
use crate::values::catalog::{Catalog, Type};
use crate::values::expression::Generator;
use crate::values::{schema, work};

/// How a session begins a transaction, drawn each time.
const BEGINNINGS: &[&str] = &[
    "set local search_path = {schema}, public",
    "set local search_path = {schema}, {schema}",
    "set local search_path = ''",
    "set local timezone = {zone}",
    "set local datestyle = 'SQL, DMY'",
    "set local bytea_output = escape",
    "set local extra_float_digits = -10",
    "set local check_function_bodies = off",
    "set local default_toast_compression = lz4",
    "set local row_security = off",
    "set local role {role}",
    "set local quote_all_identifiers = on",
    "set local my.setting = '{int}'",
    "set local session_replication_role = replica",
    "set local standard_conforming_strings = off",
    "set local {setting}",
    "set local {setting}",
    "set local {setting}",
];

/// What a transaction does; those that come first are drawn more often.
const ROWS: &[&str] = &[
    "insert into {table} select",
    "insert into {table} values ({int})",
    "insert into {table} (id) values ({int}), ({int}) on conflict do nothing",
    "insert into {table} (id) select g from generate_series({int}, {int} + 20) g on conflict do nothing",
    "insert into {table} (id, {col}) values ({int}, {expr}) on conflict do nothing",
    "insert into {table} (id, {col}) values ({int}, {expr}) on conflict (id) do update set {col} = excluded.{col}",
    "insert into {table} (id, {col}) select {int} + g, {expr} from generate_series(1, 3) g on conflict do nothing",
    "update {table} set {col} = {expr} where id % {small} = 0",
    "update {table} set {col} = {changed} where id % {small} = 0",
    "update {table} set id = id + 1000 where id = {int}",
    "update {table} set {col} = default",
    "delete from {table} where id % {small} = 1",
    "delete from {table} using {table} as o where {table}.id = o.id + 1",
    "with gone as (delete from {table} where id > {int} returning id) insert into {table} (id) select id from gone on conflict do nothing",
    "merge into {table} t using (select {int} as k) s on t.id = s.k when matched then update set {col} = {expr} when not matched then insert (id) values (s.k)",
    "select * from {table} where id < {int} for update",
    "select nextval('{seq}'), setval('{seq}', {int})",
    "select {func}({int})",
    "call {proc}({int})",
    "do $$ begin insert into {table} (id) values ({int}); exception when others then perform {func}({int}); end $$",
    "do $$ begin execute 'create table {schema}.{newtable} (id int primary key)'; insert into {schema}.{newtable} values (1); end $$",
    "truncate {table}",
    "truncate {table}, {table} restart identity cascade",
    "lock table {table} in share row exclusive mode",
    "copy {table} (id) to '/dev/null'",
    "notify n, '{int}'",
    "select set_config('my.setting', '{int}', {bool})",
    "refresh materialized view {mview}",
    "refresh materialized view concurrently {mview}",
];

const DEFINITIONS: &[&str] = &[
    // tables
    "create table {schema}.{newtable} (id int primary key, {col} {type})",
    "create table {schema}.{newtable} (id int primary key, {col} {type} default {expr}, {col2} {type} not null default {constant})",
    "create table {schema}.{newtable} (id int primary key, {columns})",
    "create table {schema}.{newtable} (id int primary key, {columns}) partition by range (id)",
    "create table a.{newtable} (id int, {col} {type}) partition by list ({same}); create table b.{newtable} partition of a.{sametable} for values in ({expr}, {expr})",
    "create table a.{newtable} (id int, {col} {type}) partition by range ({same}); create table b.{newtable} partition of a.{sametable} for values from ({expr}) to (maxvalue)",
    "create table {schema}.{newtable} (id int, {col} {type}, primary key (id, {same}))",
    "create table {schema}.{newtable} (id, {col}) as select g, {expr} from generate_series(1, 5) g",
    "create table {schema}.{newtable} (id serial primary key, {col} {type}, check ({func}(id) is not null))",
    "create table {schema}.{newtable} (id int generated always as identity primary key, {col} {type})",
    "create table {schema}.{newtable} (id bigint generated by default as identity primary key, {col} int, {col2} int generated always as (id * 2) stored)",
    "create table {schema}.{newtable} (id int primary key, {col} int references {table} on delete cascade on update cascade)",
    "create table {schema}.{newtable} (like {table} including all)",
    "create table {schema}.{newtable} () inherits ({table})",
    "create table {schema}.{newtable} (id int primary key, {col} {type}) with (fillfactor = 50, autovacuum_enabled = off)",
    "create temp table {newtable} (id int primary key, {col} {type})",
    "create table {schema}.{newtable} (id int, {col} {type}, primary key (id)) partition by range (id)",
    "create table {schema}.{newtable} (id int primary key, {col} {type}) partition by list (id)",
    "create table {schema}.{newtable} (id int primary key, {col} {type}) partition by hash (id)",
    "create table {schema}.{newtable} partition of {table} for values from ({int}) to ({int} + 50)",
    "create table {schema}.{newtable} partition of {table} for values from ((random() * 100)::int) to ((random() * 100)::int + 100)",
    "create table {schema}.{newtable} partition of {table} for values in ({func}({int}))",
    "create table {schema}.{newtable} partition of {table} for values with (modulus 3, remainder {small} )",
    "create table {schema}.{newtable} partition of {table} default",
    "create table {schema}.{newtable} as select g as id, {func}(g) as {col} from generate_series(1, 20) g",
    "select g as id, random() as {col} into {schema}.{newtable} from generate_series(1, 5) g",
    "create table {schema}.{newtable} as table {table} with no data",
    "alter table {table} add column {col} {type}",
    "alter table {table} add column {col} {type} default {expr}",
    "alter table {table} add column {col} serial",
    "alter table {table} add column {col} int generated always as ({func}(id)) stored",
    "alter table {table} add column {col} {type} not null default {expr}",
    "alter table {table} add column g{small} {generated}",
    "alter table {table} add check ({over} is not null or id >= 0)",
    "alter table {table} alter {col} type {type} using {over}",
    "alter table {table} add primary key (id)",
    "alter table {table} drop column {col} cascade",
    "alter table {table} rename column {col} to {col2}",
    "alter table {table} rename to {newtable}",
    "alter table {table} set schema {schema}",
    "alter table {table} alter {col} type {type} using {constant}",
    "alter table {table} alter {col} type text using {col}::text",
    "alter table {table} alter id type bigint",
    "alter table {table} alter {col} type int using {func}({int})",
    "alter table {table} alter {col} set default {expr}",
    "alter table {table} alter {col} drop default",
    "alter table {table} alter {col} set not null",
    "alter table {table} alter {col} set statistics 500",
    "alter table {table} alter {col} set storage external",
    "alter table {table} alter {col} set compression lz4",
    "alter table {table} alter id add generated by default as identity",
    "alter table {table} add constraint {con} check (id > -1000000)",
    "alter table {table} add constraint {con} check ({func}(id) is not null) not valid",
    "alter table {table} validate constraint {con}",
    "alter table {table} add constraint {con} unique ({col})",
    "alter table {table} add constraint {con} foreign key ({col}) references {table} not valid",
    "alter table {table} add constraint {con} exclude using gist ((int4range(id, id + 1)) with &&)",
    "alter table {table} rename constraint {con} to {con}x",
    "alter table {table} drop constraint {con} cascade",
    "alter table {table} replica identity full",
    "alter table {table} replica identity default",
    "alter table {table} set (fillfactor = 70)",
    "alter table {table} attach partition {table} for values from ({int}) to ({int} + 5)",
    "alter table {table} attach partition {table} default",
    "alter table {table} detach partition {table}",
    "alter table {table} inherit {table}",
    "alter table {table} no inherit {table}",
    "alter table {table} owner to {role}",
    "alter table {table} enable row level security",
    "alter table {table} force row level security",
    "alter table {table} disable row level security",
    "alter table {table} disable trigger all",
    "alter table {table} enable always trigger {trigger}",
    "alter table {table} enable replica trigger {trigger}",
    "alter table {table} cluster on {index}",
    "alter table all in tablespace pg_default set tablespace pg_default",
    "drop table {table} cascade",
    "drop table if exists {table}, {table} cascade",
    // indexes
    "create index on {table} ({col})",
    "create index {index} on {table} ({func}(id))",
    "{index_over}",
    "{index_over}",
    "create unique index {index} on {table} ({col}) where id > {int}",
    "create index {index} on {table} using hash ({col})",
    "create index {index} on {table} using brin (id)",
    "create index {index} on {table} (lower({col}::text), id desc nulls last) include ({col2})",
    "alter index {schema}.{index} rename to {index}",
    "drop index {schema}.{index}",
    "reindex table {table}",
    "cluster {table}",
    "create statistics {schema}.st{small} on id, {col} from {table}",
    "analyze {table}",
    // views
    "create or replace view {view} as select id, {col} from {table} where id > {int}",
    "create view {view} as select {func}(id) as id from {table}",
    "create recursive view {view} (id) as values (1) union all select id + 1 from {newtable} where id < 3",
    "alter view {view} alter column id set default {int}",
    "drop view {view} cascade",
    "create materialized view {mview} as select id, {col} from {table}",
    "create view {view} as select id, {over} as x, {expr} as y from {table}",
    "create materialized view {mview} as select id, {over} as x, {expr} as y from {table}",
    "create materialized view {mview} as select g as id, random() as x from generate_series(1, 10) g",
    "create materialized view {mview} as select {func}({int}) as id",
    "create materialized view {mview} as select current_setting('my.setting', true) as s, now() as n, current_user as u",
    "create unique index on {mview} (id)",
    "drop materialized view {mview}",
    "create or replace rule r{small} as on insert to {table} do also insert into {table} (id) values (new.id + {int})",
    "create or replace rule r{small} as on update to {table} do instead nothing",
    "drop rule r{small} on {table}",
    // functions
    "create or replace function {func}(i int) returns int immutable language sql as 'select i + {int}'",
    "create or replace function {func}(i int) returns int immutable language sql begin atomic select i * {small}; end",
    "create or replace function {func}(i int) returns int language plpgsql as $$ begin insert into {table} (id) values (i) on conflict do nothing; return i; end $$",
    "create or replace function {func}(i int) returns int language plpgsql as $$ begin create table if not exists {schema}.made (id int primary key); return i; end $$",
    "create or replace function {func}(i int) returns int immutable language plpgsql as $$ begin if i > {int} then raise exception 'no %', i; end if; return i; end $$",
    "create or replace function {func}(i int) returns int language sql security definer set search_path = {schema} as 'select nextval(''{seq}'')::int'",
    "create or replace function {func}(i int) returns int language sql as 'select (random() * 1000)::int'",
    "create or replace procedure {proc}(i int) language plpgsql as $$ begin insert into {table} (id) values (i); end $$",
    "create or replace procedure {proc}(i int) language plpgsql set role = {role} as $$ begin update {table} set id = id; end $$",
    "alter function {func}(int) owner to {role}",
    "alter function {func}(int) set my.setting = '{int}'",
    "alter function {func}(int) stable",
    "drop function {func}(int) cascade",
    "drop routine {proc}(int)",
    "create aggregate {schema}.ag{small} (int) (sfunc = int4pl, stype = int, initcond = '{int}')",
    "create operator {schema}.=#= (leftarg = int, rightarg = int, function = int4pl)",
    "create cast (bigint as box) with inout as assignment",
    "drop cast if exists (bigint as box)",
    // triggers
    "create or replace function {schema}.trig() returns trigger language plpgsql as $$ begin insert into {table} (id) values ({int}) on conflict do nothing; return new; end $$",
    "create or replace function {schema}.trig() returns trigger language plpgsql as $$ begin return coalesce(new, old); end $$",
    "create or replace trigger {trigger} before insert or update on {table} for each row execute function {schema}.trig()",
    "create or replace trigger {trigger} after truncate on {table} execute function {schema}.trig()",
    "create constraint trigger {trigger} after insert on {table} deferrable initially deferred for each row execute function {schema}.trig()",
    "drop trigger {trigger} on {table}",
    "create or replace function {schema}.event() returns event_trigger language plpgsql as $$ begin insert into {table} (id) select coalesce(max(id), 0) + 1 from {table}; exception when others then null; end $$",
    "create event trigger e{small} on ddl_command_end execute function {schema}.event()",
    "create event trigger e{small} on sql_drop execute function {schema}.event()",
    "alter event trigger e{small} enable always",
    "alter event trigger e{small} disable",
    "drop event trigger e{small}",
    // types
    "create type {schema}.mood as enum ('a', 'b')",
    "alter type {schema}.mood add value if not exists 'v{int}' before 'a'",
    "alter type {schema}.mood rename value 'b' to 'b{int}'",
    "create type {schema}.pair as (x int, y {type})",
    "alter type {schema}.pair add attribute z{small} int cascade",
    "create domain {schema}.positive as int check (value > 0) default {int}",
    "create domain {schema}.dom{small} as {type} default {expr} check (value is not null)",
    "create function {schema}.of_column({type}) returns int immutable language sql as 'select {int}'",
    "alter domain {schema}.positive add constraint {con} check ({func}(value) is not null) not valid",
    "alter domain {schema}.positive validate constraint {con}",
    "create type {schema}.span as range (subtype = int)",
    "drop type {schema}.mood cascade",
    "drop domain {schema}.positive cascade",
    "drop type {schema}.pair cascade",
    // schemas, roles, privileges
    "create schema if not exists {schema}",
    "create schema authorization {role}",
    "alter schema {schema} owner to {role}",
    "create role {role}",
    "create role {role} login createdb password 'secret{int}' valid until '2030-01-01' connection limit {small}",
    "alter role {role} set search_path = {schema}",
    "alter role {role} in database onetrip set my.setting = '{int}'",
    "alter role {role} rename to {role}",
    "alter role {role} noinherit createrole",
    "drop role {role}",
    "grant {role} to {role} with admin option",
    "revoke {role} from {role}",
    "grant select, insert on {table} to {role}, public",
    "grant update ({col}) on {table} to {role} with grant option",
    "grant all on all tables in schema {schema} to {role}",
    "grant usage, create on schema {schema} to {role}",
    "revoke all on {table} from {role} cascade",
    "revoke usage on schema {schema} from {role}",
    "grant execute on function {func}(int) to {role}",
    "grant set on parameter my.setting to {role}",
    "alter default privileges in schema {schema} grant select on tables to {role}",
    "alter default privileges for role {role} revoke execute on functions from public",
    "reassign owned by {role} to {role}",
    "drop owned by {role} cascade",
    "create policy p{small} on {table} using (id > {int}) with check (true)",
    "create policy p{small} on {table} for select to {role} using ({func}(id) > 0)",
    "alter policy p{small} on {table} rename to p{small}x",
    "drop policy p{small} on {table}",
    // the rest
    "create sequence {seq} increment by {small} start {int} cache 5",
    "create sequence {seq} as smallint minvalue 1 maxvalue 30000 cycle",
    "alter sequence {seq} restart with {int}",
    "alter sequence {seq} increment by {small} maxvalue 100000 restart",
    "alter sequence {seq} owned by {table}.id",
    "drop sequence {seq} cascade",
    "comment on table {table} is 'comment {int}'",
    "comment on column {table}.{col} is null",
    "comment on function {func}(int) is 'f {int}'",
    "create extension hstore schema {schema}",
    "create extension if not exists citext cascade",
    "create extension pg_trgm version '1.5'",
    "alter extension pg_trgm update",
    "alter extension hstore set schema {schema}",
    "drop extension hstore cascade",
    "drop extension citext cascade",
    "drop extension pg_trgm cascade",
    "create collation {schema}.coll (provider = icu, locale = 'de')",
    "create text search configuration {schema}.ts (copy = english)",
    "alter text search configuration {schema}.ts alter mapping for word with simple",
    "create foreign data wrapper w{small}",
    "create server sv{small} foreign data wrapper w{small}",
    "create user mapping for {role} server sv{small} options (u '{int}')",
    "create foreign table {schema}.{newtable} (id int) server sv{small}",
    "drop foreign data wrapper w{small} cascade",
    "create publication pub for all tables",
    "alter database onetrip set my.setting = '{int}'",
    "security label on table {table} is 'x'",
    "create access method am{small} type table handler heap_tableam_handler",
    "drop access method am{small} cascade",
    "create transform for int language plpgsql (from sql with function prsd_lextype(internal))",
    "import foreign schema x from server sv{small} into {schema}",
    "vacuum {table}",
];

/// Functions that are not what they are declared to be: a statement that calls them may fail in another region, which only its
/// rehearsal there finds.
const LIES: &[&str] = &[
    "create or replace function {func}(i int) returns int immutable language plpgsql as $$ begin return (select count(*) from {table}); end $$",
    "create or replace function {func}(i int) returns int immutable language plpgsql as $$ begin return current_setting('my.setting', true)::int; end $$",
];

const TYPES: &[&str] = &[
    "int",
    "text",
    "numeric(10, 2)",
    "timestamptz",
    "jsonb",
    "int[]",
    "bytea",
    "varchar(10)",
    "boolean",
    "float8",
    "uuid",
    "regclass",
    "a.mood",
    "b.pair",
    "a.positive",
    "interval",
    "xml",
    "oid",
    "a.span",
    "int4range",
    "regrole",
    "tsvector",
];
const EXPRESSIONS: &[&str] = &[
    "default",
    "null",
    "{constant}",
    "now()",
    "random()",
    "current_user",
    "{func}({int})",
    "nextval('{seq}')",
    "gen_random_uuid()",
    "current_setting('my.setting', true)",
    "repeat('x', 3000)",
    "'{1,2}'",
    "pg_backend_pid()",
    "row(1, null)",
    "'a.t1'::regclass",
    "clock_timestamp()",
    "array[{int}, null]",
    "txid_current()",
    "(select max(id) from {table})",
];
const CONSTANTS: &[&str] = &["'1'", "'0'", "'abc'", "{int}", "'{}'", "null", "'2026-01-01'", "true", "'a'"];
const ZONES: &[&str] = &["'UTC'", "'Asia/Tokyo'", "'America/New_York'", "'+05:30'"];

/// A column whose type is the round's.
pub struct Column {
    pub name: String,
    pub kind: Type,
}

/// Draws transactions.
pub struct Grammar<'a> {
    generator: Generator<'a>,
    columns: &'a [Column],
    /// Every region tries a statement before it is committed.
    rehearsed: bool,
    /// The one that the statement named last, if the type of that is known.
    column: Option<&'a Column>,
    /// The table that the statement makes.
    table: String,
}

impl<'a> Grammar<'a> {
    pub fn new(catalog: &'a Catalog, columns: &'a [Column], rehearsed: bool, random: Random) -> Grammar<'a> {
        let generator = Generator::new(catalog, random);
        Grammar { generator, columns, rehearsed, column: None, table: String::new() }
    }

    /// The statements of one transaction, its BEGIN and COMMIT left out.
    pub fn transaction(&mut self) -> Vec<String> {
        let mut statements = Vec::new();
        if self.random().chance(30) {
            statements.push(self.one_of(BEGINNINGS));
        }
        let mut savepoints = 0;
        for _ in 0..1 + self.random().draw(5) {
            if self.random().chance(15) {
                statements.push("savepoint s".into());
                savepoints += 1;
            } else if savepoints > 0 && self.random().chance(20) {
                statements.push("rollback to s".into());
            }
            let list = match self.random().draw(200) {
                0 if self.rehearsed => LIES,
                1..90 => DEFINITIONS,
                _ => ROWS,
            };
            self.column = None;
            statements.push(self.one_of(list));
        }
        statements
    }

    /// A value of a column of the round.
    pub fn value(&mut self, column: &Column) -> String {
        self.generator.value(column.kind.oid)
    }

    fn random(&mut self) -> &mut Random {
        &mut self.generator.random
    }

    fn one_of(&mut self, list: &[&str]) -> String {
        let template = list[self.random().index(list.len())];
        self.fill(template)
    }

    fn fill(&mut self, template: &str) -> String {
        let mut out = String::new();
        let mut rest = template;
        while let Some(at) = rest.find('{') {
            out += &rest[..at];
            let end = rest[at..].find('}').map_or(rest.len(), |n| at + n + 1);
            let place = &rest[at..end];
            match self.place(place) {
                Some(text) => out += &text,
                None => out += place,
            }
            rest = &rest[end..];
        }
        out + rest
    }

    fn place(&mut self, place: &str) -> Option<String> {
        let numbered = |name: &str, below: u64, random: &mut Random| format!("{name}{}", 1 + random.draw(below));
        Some(match place {
            "{int}" => self.random().draw(60).to_string(),
            "{small}" => (1 + self.random().draw(4)).to_string(),
            "{bool}" => ["true", "false"][self.random().index(2)].to_string(),
            "{schema}" => ["a", "b"][self.random().index(2)].to_string(),
            "{newtable}" => {
                self.table = numbered("t", 6, self.random());
                self.table.clone()
            }
            "{sametable}" => self.table.clone(),
            "{table}" => self.in_schema("t", 6),
            "{col}" if self.random().chance(60) => self.any_column().name.clone(),
            "{col}" => {
                self.column = None;
                numbered("c", 3, self.random())
            }
            "{same}" => self.column.map_or("id".to_string(), |column| column.name.clone()),
            "{col2}" => {
                self.column = None;
                numbered("d", 2, self.random())
            }
            "{columns}" => {
                let columns = self.columns;
                let columns =
                    columns[self.random().index(columns.len())..].iter().map(|c| format!("{} {}", c.name, c.kind.name));
                columns.collect::<Vec<_>>().join(", ")
            }
            "{con}" => numbered("con", 3, self.random()),
            "{index}" => numbered("i", 4, self.random()),
            "{index_over}" => {
                let (table, column) = (self.in_schema("t", 6), self.any_column());
                let place = schema::Place { table: &table, column: &column.name, also: "id", include: "id" };
                schema::index(&mut self.generator, &column.kind, &place)?
            }
            "{trigger}" => numbered("tr", 2, self.random()),
            "{role}" => numbered("poison_", 3, self.random()),
            "{func}" => self.in_schema("f", 4),
            "{proc}" => self.in_schema("p", 2),
            "{view}" => self.in_schema("v", 2),
            "{mview}" => self.in_schema("m", 2),
            "{seq}" => self.in_schema("s", 2),
            "{type}" => match (self.column, self.random().draw(100)) {
                (Some(column), 0..85) => column.kind.name.clone(),
                (None, 0..70) => self.one_of(TYPES),
                _ => self.any_column().kind.name.clone(),
            },
            "{expr}" => match (self.column, self.random().draw(100)) {
                (Some(column), 0..80) => self.value(column),
                (None, 0..20) => {
                    let column = self.any_column();
                    self.value(column)
                }
                _ => self.one_of(EXPRESSIONS),
            },
            "{changed}" => {
                let column = self.column.unwrap_or_else(|| self.any_column());
                self.generator.changed(column.kind.oid, &column.name)
            }
            "{over}" => self.over().0,
            "{generated}" => {
                let (expression, kind) = self.over();
                format!("{kind} generated always as ({expression}) stored")
            }
            "{constant}" => self.one_of(CONSTANTS),
            "{zone}" => self.one_of(ZONES),
            "{setting}" => {
                let (name, values) = work::SETTINGS[self.random().index(work::SETTINGS.len())];
                let value = values[self.random().index(values.len())];
                match name {
                    "search_path" if !value.is_empty() => format!("{name} = {value}"),
                    _ => format!("{name} = {}", quoted(value)),
                }
            }
            _ => return None,
        })
    }

    /// What an index may compute from a column, and the type of that.
    fn over(&mut self) -> (String, String) {
        let column = self.column.unwrap_or_else(|| self.any_column());
        let made = self.generator.of_column(column.kind.oid, &column.name);
        let made = made.and_then(|(text, of)| Some((text, self.generator.catalog.by_oid(of)?.name.clone())));
        made.unwrap_or_else(|| (column.name.clone(), column.kind.name.clone()))
    }

    fn any_column(&mut self) -> &'a Column {
        let columns = self.columns;
        let column = &columns[self.random().index(columns.len())];
        self.column = Some(column);
        column
    }

    fn in_schema(&mut self, name: &str, below: u64) -> String {
        let number = 1 + self.random().draw(below);
        match self.random().index(2) {
            0 => format!("a.{name}{number}"),
            _ => format!("b.{name}{number}"),
        }
    }
}
