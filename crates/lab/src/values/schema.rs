//! The types, tables, indexes and constraints for the values.

use super::catalog::{Catalog, Kind, Oid, Type};
use super::expression::Generator;
use crate::torture::random::Random;

/// Types of our own, made from types of the server or of an extension.
pub const TYPES: &str = "
    create schema made;
    create role writer login;
    grant usage on schema made to writer;
    create type made.mood as enum ('sad', 'ok', 'happy', '', 'A b');
    create type made.colour as enum ('red');
    alter type made.colour add value 'blue' before 'red';
    alter type made.colour add value 'green' before 'red';
    create type made.flat as (a int, t text, n numeric, b bytea);
    create type made.moody as (m made.mood, ms made.mood[], cs made.colour[]);
    create type made.nested as (f made.flat, fs made.flat[], m made.moody);
    create type made.priced as (m money, ms money[], i interval);
    create type made.named as (c regclass, p regprocedure, t regtype[], a aclitem);
    create type made.parsed as (i int, tree pg_node_tree);
    create domain made.mood_domain as made.mood;
    create domain made.moods_domain as made.mood[];
    create domain made.positive as int check (value > 0);
    create domain made.positive_domain as made.positive not null;
    create domain made.flat_domain as made.flat;
    create domain made.short as varchar(10) collate \"C\";
    create domain made.json_domain as json;
    create domain made.class_domain as regclass;
    create type made.of_domains as (p made.positive, m made.mood_domain, f made.flat_domain, s made.short[]);
    create type made.floats as range (subtype = float8, subtype_diff = float8mi);
    create type made.texts as range (subtype = text, collation = \"C\");
    create type made.moods as range (subtype = made.mood);
    create type made.flats as range (subtype = made.flat);
    create type made.classes as range (subtype = oid);
    create domain made.floats_domain as made.floats;
    create type made.of_ranges as (f made.floats, m made.moods, ms made.moods[], r int4multirange, fm made.floats_multirange);
    create domain made.deep as made.of_ranges;
    create type made.deepest as (d made.deep[], n made.nested, p made.parsed);
    create function made.shown(v anyelement) returns text language plpgsql as $$
        begin return v::text; exception when others then return 'not shown: ' || sqlerrm; end $$;
    create function made.passed() returns trigger language plpgsql as $$
        begin new.w := new.v; new.note := new.note || '.'; return new; end $$;";

/// More types of our own, drawn at random.
pub fn drawn_types(catalog: &Catalog, random: &mut Random) -> Vec<String> {
    let all: Vec<&Type> = catalog.types.values().filter(|t| !t.name.starts_with("made.")).collect();
    let simple: Vec<&Type> = all.iter().filter(|t| t.kind != Kind::Composite).copied().collect();
    let mut made = Vec::new();
    for number in 0..12 {
        let mut pick = || simple[random.index(simple.len())].name.clone();
        made.push(match number % 4 {
            0 => format!("create type made.drawn{number} as (a {}, b {}, c made.moody[])", pick(), pick()),
            1 => format!("create type made.drawn{number} as (a {}, b made.drawn{})", pick(), number - 1),
            2 => format!("create domain made.drawn{number} as {}", pick()),
            _ => format!("create type made.drawn{number} as range (subtype = {})", pick()),
        });
    }
    made
}

#[derive(Clone, Debug)]
pub struct Table {
    pub name: String,
    pub of: Oid,
    pub type_name: String,
    /// If the server refuses the first, there is no table; any other that it refuses is left out.
    pub statements: Vec<String>,
    pub generated: bool,
}

/// Two tables for a type, so that rows can be copied from one to the other.
pub fn tables(generator: &mut Generator<'_>, kind: &Type, number: usize) -> Vec<Table> {
    ["", "b"].iter().map(|suffix| table(generator, kind, &format!("made.t{number}{suffix}"))).collect()
}

pub fn plain_table(kind: &Type, number: usize) -> Table {
    let (name, type_name) = (format!("made.t{number}"), kind.name.clone());
    let statements =
        vec![format!("create table {name} (id bigint primary key, v {type_name}, w {type_name}, other int default 0, note text default '')")];
    Table { name, of: kind.oid, type_name, statements, generated: false }
}

fn table(generator: &mut Generator<'_>, kind: &Type, name: &str) -> Table {
    let type_name = kind.name.clone();
    let mut generated = None;
    if generator.random.chance(25) {
        generated = generator.of_column(kind.oid, "v");
    }
    let short = name.trim_start_matches("made.");
    let identity_kind = generator.random.draw(14);
    let primary = if identity_kind < 6 { " primary key" } else { "" };
    let mut statements = vec![
        format!("create table {name} (id bigint{primary}, v {type_name}, w {type_name}, other int default 0, note text default '')"),
        format!("grant select, insert, update, delete on {name} to writer"),
    ];
    match identity_kind {
        0..=5 => {}
        6 | 7 => statements.push(format!("alter table {name} add primary key (id, v)")),
        8 => {
            statements.push(format!("alter table {name} alter id set not null"));
            statements.push(format!("create unique index {short}_identity on {name} (id)"));
            statements.push(format!("alter table {name} replica identity using index {short}_identity"));
        }
        9 => statements.push(format!("alter table {name} alter id set not null, add unique (id)")),
        10 => statements.push(format!("alter table {name} add primary key (id) deferrable initially deferred")),
        // Only the whole row identifies it: found through an index, or by reading the table.
        11 => statements.push(format!("create index on {name} (id)")),
        _ => {}
    }
    if let Some((expression, of)) = &generated {
        if let Some(of) = generator.catalog.by_oid(*of) {
            statements
                .push(format!("alter table {name} add column g {} generated always as ({expression}) stored", of.name));
        }
    }
    if kind.length == -1 {
        let random = &mut generator.random;
        for column in ["v", "w"] {
            if random.chance(70) {
                let storage = ["plain", "external", "extended", "main"][random.index(4)];
                statements.push(format!("alter table {name} alter {column} set storage {storage}"));
            }
            if random.chance(60) {
                let method = ["pglz", "lz4"][random.index(2)];
                statements.push(format!("alter table {name} alter {column} set compression {method}"));
            }
        }
        if random.chance(40) {
            statements
                .push(format!("alter table {name} set (toast_tuple_target = {})", [128, 500, 4080][random.index(3)]));
        }
    }
    let place = Place { table: name, column: "v", also: "other", include: "other, w" };
    for _ in 0..generator.random.draw(4) {
        statements.extend(index(generator, kind, &place));
    }
    if generator.random.chance(15) {
        if let Some((expression, _)) = generator.of_column(kind.oid, "v") {
            statements.push(format!("alter table {name} add check (({expression}) is not null or other >= 0)"));
        }
    }
    if generator.random.chance(15) {
        statements.push(format!(
            "create trigger passed before insert or update on {name} for each row execute function made.passed()"
        ));
    }
    if let Some(first) = name.strip_suffix('b').filter(|_| generator.random.chance(15)) {
        statements.push(format!("alter table {first} add unique (v)"));
        statements.push(format!(
            "alter table {name} add foreign key (w) references {first} (v) on update cascade on delete set null"
        ));
    }
    Table { name: name.to_string(), of: kind.oid, type_name, statements, generated: generated.is_some() }
}

/// Where an index goes.
pub struct Place<'a> {
    pub table: &'a str,
    pub column: &'a str,
    /// Another column, of any type that can be sorted.
    pub also: &'a str,
    pub include: &'a str,
}

/// An index with any operator class that accepts the column or an expression over it.
pub fn index(generator: &mut Generator<'_>, kind: &Type, place: &Place<'_>) -> Option<String> {
    let Place { table, column, also, include } = place;
    let (mut what, mut of) = (column.to_string(), kind.oid);
    if generator.random.chance(30) {
        (what, of) = generator.of_column(kind.oid, column)?;
    }
    let classes = generator.catalog.classes_of(of);
    let random = &mut generator.random;
    if classes.is_empty() {
        // The server refuses it, or uses an operator class of another type.
        return Some(format!("create index on {table} ({what})"));
    }
    let class = classes[random.index(classes.len())];
    let (method, class_name) = (&class.method, &class.name);
    let partial = if random.chance(15) { format!(" where ({column} is not null)") } else { String::new() };
    if random.chance(25) && !class.operators.is_empty() && ["gist", "btree", "hash", "spgist"].contains(&&**method) {
        let operator = &class.operators[random.index(class.operators.len())];
        return Some(format!(
            "alter table {table} add exclude using {method} ({what} {class_name} with {operator}){partial}"
        ));
    }
    if method == "btree" && random.chance(50) {
        let nulls = if random.chance(30) { " nulls not distinct" } else { "" };
        let include = if random.chance(30) { format!(" include ({include})") } else { String::new() };
        let more = if random.chance(20) { format!(", {also}") } else { String::new() };
        return Some(format!("create unique index on {table} ({what} {class_name}{more}){include}{nulls}{partial}"));
    }
    Some(format!("create index on {table} using {method} ({what} {class_name}){partial}"))
}
