//! The statements of one round, drawn before any of them runs, so that they depend on the seed alone.

use super::catalog::Kind;
use super::expression::Generator;
use super::schema::Table;
use crate::trial::sql::quoted;

/// Settings that change how a value is read or shown, or what an expression computes, with unusual values.
pub const SETTINGS: [(&str, &[&str]); 23] = [
    ("bytea_output", &["escape"]),
    ("extra_float_digits", &["0", "-15", "3"]),
    ("DateStyle", &["SQL, DMY", "German", "Postgres, MDY", "ISO, YMD"]),
    ("IntervalStyle", &["sql_standard", "iso_8601", "postgres_verbose"]),
    ("TimeZone", &["America/St_Johns", "Asia/Kathmandu", "<x>-15:59:59", "Pacific/Apia"]),
    ("timezone_abbreviations", &["Australia", "India"]),
    ("lc_monetary", &["C"]),
    ("lc_numeric", &["C"]),
    ("lc_time", &["C"]),
    ("xmlbinary", &["hex"]),
    ("xmloption", &["document"]),
    ("default_text_search_config", &["pg_catalog.english", "pg_catalog.german", "pg_catalog.simple"]),
    ("default_toast_compression", &["lz4", "pglz"]),
    ("array_nulls", &["off"]),
    ("quote_all_identifiers", &["on"]),
    ("transform_null_equals", &["on"]),
    ("search_path", &["made, public", "pg_temp, pg_catalog, public", ""]),
    ("standard_conforming_strings", &["off"]),
    ("backslash_quote", &["on", "off"]),
    ("my.x", &["1", "two"]),
    ("pg_trgm.similarity_threshold", &["0.9"]),
    ("postgis.backend", &["geos"]),
    ("session_replication_role", &["local"]),
];

#[derive(Clone, Debug)]
pub struct Statement {
    pub text: String,
    /// Index of its table.
    pub table: usize,
    /// Whether an ordinary role runs it, and not the superuser.
    pub ordinary: bool,
    /// If any, SET commands to run before, which replace those of earlier statements.
    pub settings: Option<Vec<String>>,
    /// The ids of the rows that it inserted or may have changed; empty if they are not known.
    pub ids: Vec<i64>,
}

/// Inserts a few rows into each table.
pub fn inserts(generator: &mut Generator<'_>, tables: &[Table]) -> Vec<Statement> {
    let mut statements = Vec::new();
    for (table, of) in tables.iter().enumerate() {
        for row in 0..8 {
            let (name, id) = (&of.name, row + 1);
            let v = if row < 2 { generator.simple_value(of.of) } else { generator.value(of.of) };
            let text =
                format!("insert into {name} (id, v) select {id}, v from (select {v} as v offset 0) as s where pg_column_size(v) < 300000");
            statements.push(Statement { text, table, ordinary: false, settings: None, ids: vec![id] });
        }
    }
    statements
}

/// Draws the statements of one region; `files`: a folder for COPY.
pub fn draw(
    generator: &mut Generator<'_>,
    tables: &[Table],
    region: usize,
    count: usize,
    files: &str,
) -> Vec<Statement> {
    let mut statements = Vec::new();
    let mut next = 1 + 100_000 * region as i64;
    // First each region inserts into each table.
    for number in 0..count {
        let table =
            if number < tables.len() { (number + region) % tables.len() } else { generator.random.index(tables.len()) };
        statements.push(statement(generator, tables, table, number < tables.len(), &mut next, files));
    }
    statements
}

fn statement(
    generator: &mut Generator<'_>,
    tables: &[Table],
    number: usize,
    insert: bool,
    next: &mut i64,
    files: &str,
) -> Statement {
    let table = &tables[number];
    // The two tables of a type are neighbours.
    let other = &tables[number ^ 1];
    let name = &table.name;
    let id = *next;
    *next += 10;
    // A row of this region or of another, if it exists.
    let old = match generator.random.chance(80) {
        true => id - 10 * (1 + generator.random.draw(2 * tables.len() as u64) as i64),
        false => {
            1 + 100_000 * generator.random.draw(3) as i64 + 10 * generator.random.draw(2 * tables.len() as u64) as i64
        }
    };
    let kind = if insert { generator.random.draw(30) } else { generator.random.draw(100) };
    let value = |generator: &mut Generator<'_>| generator.value(table.of);
    let mut ordinary = generator.random.chance(50);
    let mut ids = vec![id];
    let text = match kind {
        0..=24 => {
            let (v, w) = (value(generator), value(generator));
            match kind % 3 {
                // The condition leaves out values of more than 300 kB.
                0 => format!("insert into {name} (id, v) select {id}, v from (select {v} as v offset 0) as s where pg_column_size(v) < 300000"),
                1 => format!("insert into {name} (id, v, w) values ({id}, {v}, {w})"),
                _ => format!("insert into {name} (id, v, note) values ({id}, {v}, 'a'), ({id} + 1, {w}, 'b')"),
            }
        }
        25..=29 => {
            let (v, kind) = (value(generator), generator.catalog.by_oid(table.of).map(|t| t.kind));
            // A variable of PL/pgSQL contains arrays and rows in expanded form, which differs from the stored one.
            let change = match kind {
                Some(Kind::Array) => "x := x || x;",
                _ => "y := x; x := y;",
            };
            format!(
                "do $do$ declare x {kind}; y {kind}; begin x := {v}; {change} insert into {name} (id, v, w) values ({id}, x, y); end $do$",
                kind = table.type_name
            )
        }
        30..=46 => {
            let (from, to) = (&["v", "w"][generator.random.index(2)], &["v", "w"][generator.random.index(2)]);
            ids = (id..id + 9).collect();
            format!(
                "insert into {name} (id, {to}) select {id} + row_number() over (order by id), {from} from {} where {from} is not null \
                 order by id desc limit 4",
                other.name
            )
        }
        47..=52 => {
            let v = value(generator);
            let action = match generator.random.draw(3) {
                0 => "nothing",
                1 => "(id) do update set v = excluded.v, other = excluded.other + 1",
                _ => "(id) do update set other = excluded.other + 1, w = excluded.v",
            };
            ids = vec![old];
            format!(
                "insert into {name} (id, v) values ({old}, {v}) on conflict {}",
                if action == "nothing" { "do nothing".to_string() } else { action.to_string() }
            )
        }
        53..=58 => {
            ordinary = false;
            let format = ["text", "binary", "csv"][generator.random.index(3)];
            let file = quoted(&format!("{files}/values.copy"));
            ids = Vec::new();
            format!(
                "copy (select id + {id}, v, w from {} order by id limit 4) to {file} (format {format}); copy {name} (id, v, w) from {file} (format {format})",
                other.name
            )
        }
        59..=64 => {
            let v = value(generator);
            format!("savepoint s; insert into {name} (id, v) values ({id}, {v}); rollback to s; insert into {name} (id, w) values ({id}, {v})")
        }
        65..=72 => {
            ids = vec![old];
            format!("update {name} set other = other + 1 where id between {old} and {old} + 9")
        }
        73..=80 => {
            let changed = generator.changed(table.of, "v");
            ids = vec![old];
            format!("update {name} set v = {changed} where id between {old} and {old} + 9")
        }
        81..=84 => {
            let v = value(generator);
            ids = vec![old];
            let part = generator.catalog.base(table.of).map(|base| (base.kind, base.fields.clone(), base.of));
            match part {
                Some((Kind::Composite, fields, _)) if !fields.is_empty() => {
                    let (field, of) = &fields[generator.random.index(fields.len())];
                    let part = generator.value(*of);
                    format!("update {name} set v.{field} = {part} where id between {old} and {old} + 9")
                }
                Some((Kind::Array, _, of)) => {
                    let part = generator.value(of);
                    format!(
                        "update {name} set v[{}] = {part} where id between {old} and {old} + 9",
                        generator.random.draw(6)
                    )
                }
                _ => format!("update {name} set v = w, w = {v} where id between {old} and {old} + 9"),
            }
        }
        85..=88 => {
            ids = vec![old, id];
            format!("update {name} set id = {id} where id = {old}")
        }
        89..=91 => {
            ids = vec![old];
            format!("update {name} set w = v where id between {old} and {old} + 9")
        }
        92..=94 => {
            let v = value(generator);
            ids = vec![old, id];
            format!(
                "merge into {name} as t using (values ({old}::bigint, {v}), ({id}, null)) as s(id, v) on t.id = s.id \
                 when matched then update set v = s.v, other = t.other + 1 when not matched then insert (id, v) values (s.id, s.v)"
            )
        }
        _ => {
            ids = vec![old];
            format!("delete from {name} where id between {old} and {old} + 4")
        }
    };
    let settings = generator.random.chance(35).then(|| {
        let count = generator.random.draw(4);
        (0..count)
            .map(|_| {
                let (setting, values) = SETTINGS[generator.random.index(SETTINGS.len())];
                let value = values[generator.random.index(values.len())];
                match setting {
                    "search_path" if !value.is_empty() => format!("set search_path = {value}"),
                    _ => format!("set {setting} = {}", quoted(value)),
                }
            })
            .collect()
    });
    Statement { text, table: number, ordinary, settings, ids }
}
