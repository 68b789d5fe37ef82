//! Every catalog of a PostgreSQL, as it is at the position, column by column.
//!
//! Which catalogs and columns there are, what each column refers to (`pg_get_catalog_foreign_keys()`) and by which columns a
//! row is known (its unique indexes) comes from the server itself.  What is left out stands in `docs/census/catalogs.tsv`, with
//! the reason.  A column that this file cannot read is an error: nothing is left out in silence.
//!
//! Rows come in the reader's snapshot.  Expressions are the exception: the server prints them with the names of now.

use std::collections::{BTreeMap, HashMap};

use anyhow::{bail, Context, Result};

use super::snapshots::Reader;

/// catalog, column or `*`, versions, reason
const LEFT_OUT: &str = include_str!("../../../../docs/census/catalogs.tsv");

/// How a stored expression is printed; each is one tree for another function of the server.
const EXPRESSIONS: &[(&str, &str, &str)] = &[
    ("pg_attrdef", "adbin", "pg_get_expr(adbin, adrelid)"),
    ("pg_class", "relpartbound", "pg_get_expr(relpartbound, oid)"),
    ("pg_constraint", "conbin", "pg_get_expr(conbin, conrelid)"),
    ("pg_index", "indexprs", "pg_get_expr(indexprs, indrelid)"),
    ("pg_index", "indpred", "pg_get_expr(indpred, indrelid)"),
    ("pg_partitioned_table", "partexprs", "pg_get_expr(partexprs, partrelid)"),
    ("pg_policy", "polqual", "pg_get_expr(polqual, polrelid)"),
    ("pg_policy", "polwithcheck", "pg_get_expr(polwithcheck, polrelid)"),
    ("pg_proc", "proargdefaults", "pg_get_expr(proargdefaults, 0)"),
    ("pg_proc", "prosqlbody", "pg_get_function_sqlbody(oid)"),
    ("pg_publication_rel", "prqual", "pg_get_expr(prqual, prrelid)"),
    ("pg_rewrite", "ev_action", "pg_get_ruledef(oid)"),
    ("pg_statistic_ext", "stxexprs", "pg_get_expr(stxexprs, stxrelid)"),
    ("pg_trigger", "tgqual", "case when tgqual is not null then pg_get_triggerdef(oid) end"),
    ("pg_type", "typdefaultbin", "pg_get_expr(typdefaultbin, 0)"),
];

/// Compared by a digest that is not shown.
const SECRETS: &[(&str, &str)] =
    &[("pg_authid", "rolpassword"), ("pg_subscription", "subconninfo"), ("pg_user_mapping", "umoptions")];

/// A region steps through a sequence from a place of its own; what the owner wrote stands in the sequence's reloptions.
const SHARES: &[(&str, &str, &str)] = &[
    ("pg_sequence", "seqstart", "true"),
    ("pg_sequence", "seqmin", "seqcycle and seqincrement > 0"),
    ("pg_sequence", "seqmax", "seqcycle and seqincrement < 0"),
];

/// Minor releases of 2026 keep a version of each column here, which is a position in the WAL of one server.
const OPTIONS: &str = "(select array_agg(o order by place) from unnest(attoptions) with ordinality as u(o, place)
     where o not like 'pg\\_attver=%')::text";

/// A dropped column keeps them, and they mean nothing any more: what they name may be gone, and is a number then.
const OF_COLUMNS_THAT_ARE: &[(&str, &str)] = &[("attcollation", "'0'"), ("attacl", "null"), ("attfdwoptions", "null")];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    OwnOid,
    /// Of a row of that catalog.
    Reference(String),
    /// Many of them.
    References(String),
    /// Of a row of the catalog that this other column names.
    Object(usize),
    Secret,
    Text,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub kind: Kind,
    sql: String,
    /// Names are names, and what else there is in a key goes behind.
    pub is_name: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    pub name: String,
    pub columns: Vec<Column>,
    /// By which a row is known in every region; all of them if the catalog has no unique index.
    pub key: Vec<usize>,
}

impl Catalog {
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    pub fn own_oid(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.kind == Kind::OwnOid)
    }
}

pub type Row = Vec<Option<String>>;

/// All rows of one region.
pub struct Catalogs {
    pub catalogs: Vec<Catalog>,
    pub rows: Vec<Vec<Row>>,
    pub by_name: HashMap<String, usize>,
}

fn left_out(catalog: &str, column: &str) -> bool {
    let lines = LEFT_OUT.lines().skip(1).map(|line| line.split('\t').collect::<Vec<_>>());
    lines.into_iter().any(|line| line[0] == catalog && (line[1] == "*" || line[1] == column))
}

const COLUMNS: &str = "
select c.relname::text, a.attname::text, format_type(a.atttypid, -1)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r' and c.oid < 16384
order by c.relname::text collate \"C\", a.attnum";

const REFERENCES: &str = "
select f.relname::text, r.fkcols[1]::text, p.relname::text, r.is_array
from pg_get_catalog_foreign_keys() r join pg_class f on f.oid = r.fktable join pg_class p on p.oid = r.pktable
where cardinality(r.fkcols) = 1 and r.pkcols = '{oid}'";

/// The best first: with a name in it, then the one that PostgreSQL calls the primary key.
const KEYS: &str = "
select c.relname::text, array(select a.attname::text from pg_attribute a where a.attrelid = i.indexrelid order by a.attnum)
from pg_class c join pg_index i on i.indrelid = c.oid join pg_class n on n.oid = i.indexrelid
where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r' and c.oid < 16384 and i.indisunique
    and not exists (select from pg_attribute a where a.attrelid = i.indexrelid and a.attname = 'oid')
order by not exists (select from pg_attribute a where a.attrelid = i.indexrelid
                     and a.atttypid in ('name'::regtype, 'cstring'::regtype, 'text'::regtype)),
    not i.indisprimary, n.relname::text collate \"C\"";

/// What there is to compare, as this server has it.
pub async fn plan(reader: &Reader) -> Result<Vec<Catalog>> {
    let ask = |query| async move {
        reader.client.query(query, &[]).await.with_context(|| format!("describe the catalogs of {}", reader.region))
    };
    let mut references = HashMap::new();
    for row in ask(REFERENCES).await? {
        let [table, column, target]: [String; 3] = [row.get(0), row.get(1), row.get(2)];
        references.insert((table, column), (target, row.get::<_, bool>(3)));
    }
    let mut keys: HashMap<String, Vec<String>> = HashMap::new();
    for row in ask(KEYS).await? {
        keys.entry(row.get(0)).or_insert(row.get(1));
    }
    let mut columns: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for row in ask(COLUMNS).await? {
        columns.entry(row.get(0)).or_default().push((row.get(1), row.get(2)));
    }
    let mut catalogs = Vec::new();
    for (name, columns) in columns {
        if left_out(&name, "*") {
            continue;
        }
        catalogs.push(catalog(name, &columns, &references, &keys)?);
    }
    Ok(catalogs)
}

fn catalog(
    name: String,
    described: &[(String, String)],
    references: &HashMap<(String, String), (String, bool)>,
    keys: &HashMap<String, Vec<String>>,
) -> Result<Catalog> {
    let mut columns: Vec<Column> = Vec::new();
    for (column, kind) in described {
        if left_out(&name, column) {
            continue;
        }
        let mut column = self::column(&name, column, kind, references, described)?;
        let of_dropped = OF_COLUMNS_THAT_ARE.iter().find(|(kept, _)| name == "pg_attribute" && column.name == *kept);
        if let Some((_, nothing)) = of_dropped {
            column.sql = format!("case when attisdropped then {nothing} else {} end", column.sql);
        }
        columns.push(column);
    }
    for at in 0..columns.len() {
        // Its place was not known before.
        if let Kind::Object(_) = columns[at].kind {
            let class = class_column(&columns[at].name);
            let Some(place) = columns.iter().position(|c| c.name == class) else {
                bail!("onetrip check does not know what {name}.{} refers to", columns[at].name);
            };
            columns[at].kind = Kind::Object(place);
        }
    }
    let all = || (0..columns.len()).filter(|at| columns[*at].kind != Kind::OwnOid).collect();
    let key = match keys.get(&name) {
        None => all(),
        Some(key) => {
            let place = |column: &String| columns.iter().position(|c| c.name == *column);
            key.iter().map(place).collect::<Option<Vec<_>>>().unwrap_or_else(all)
        }
    };
    Ok(Catalog { name, columns, key })
}

/// `objid` goes with `classid`, `objoid` with `classoid`, `refobjid` with `refclassid`.
fn class_column(object_column: &str) -> String {
    object_column.replace("obj", "class")
}

fn column(
    catalog: &str,
    name: &str,
    kind: &str,
    references: &HashMap<(String, String), (String, bool)>,
    described: &[(String, String)],
) -> Result<Column> {
    let made = |kind, sql| Ok(Column { name: name.to_string(), kind, sql, is_name: false });
    let listed = |list: &[(&str, &str, &'static str)]| {
        list.iter().find(|(c, n, _)| *c == catalog && *n == name).map(|(_, _, with)| *with)
    };
    if let Some((target, many)) = references.get(&(catalog.to_string(), name.to_string())) {
        return match (many, kind) {
            (true, "oid[]" | "oidvector") => made(Kind::References(target.clone()), format!("{name}::text")),
            (false, "oid" | "regproc") => made(Kind::Reference(target.clone()), format!("{name}::oid::text")),
            _ => bail!("onetrip check cannot read {catalog}.{name}, which is of type {kind}"),
        };
    }
    if SECRETS.contains(&(catalog, name)) {
        let digest = format!("encode(sha256(convert_to({name}::text, 'UTF8')), 'hex')");
        return made(Kind::Secret, digest);
    }
    if let Some(when) = listed(SHARES) {
        return made(Kind::Text, share(name, when));
    }
    match kind {
        _ if (catalog, name) == ("pg_attribute", "attoptions") => made(Kind::Text, OPTIONS.to_string()),
        "oid" if name == "oid" => made(Kind::OwnOid, "oid::text".to_string()),
        "oid" if described.iter().any(|(other, _)| *other == class_column(name) && other != name) => {
            made(Kind::Object(0), format!("{name}::text"))
        }
        "pg_node_tree" => match listed(EXPRESSIONS) {
            Some(sql) => made(Kind::Text, sql.to_string()),
            None => bail!("onetrip check cannot print the expression {catalog}.{name}"),
        },
        "aclitem[]" => made(
            Kind::Text,
            format!("(select string_agg(i::text, ',' order by i::text collate \"C\") from unnest({name}) as i)"),
        ),
        "name" | "text" => Ok(Column { is_name: true, ..made(Kind::Text, format!("{name}::text"))? }),
        "smallint"
        | "integer"
        | "bigint"
        | "real"
        | "boolean"
        | "\"char\""
        | "bytea"
        | "timestamp with time zone"
        | "smallint[]"
        | "int2vector"
        | "text[]"
        | "\"char\"[]"
        | "real[]" => made(Kind::Text, format!("{name}::text")),
        _ => bail!("onetrip check cannot compare {catalog}.{name}, which is of type {kind}"),
    }
}

/// A value that is this region's own by the arithmetic of `sequence_share.c` says so and no more.
fn share(column: &str, when: &str) -> String {
    format!(
        "(select case when {when} and stride > 1 and increment * stride = seqincrement
                     and mod({column} - anchor, increment) = 0
                     and mod(mod(({column} - anchor) / increment, stride) + stride, stride) = slot
                 then 'of this region''s share' else {column}::text end
          from (select max(option_value::numeric) filter (where option_name = 'anchor') as anchor,
                       max(option_value::numeric) filter (where option_name = 'increment') as increment,
                       current_setting('onetrip.sequence_stride')::numeric as stride,
                       current_setting('onetrip.sequence_slot')::numeric as slot
                from pg_class c, pg_options_to_table(c.reloptions) where c.oid = seqrelid) as owner)"
    )
}

/// All rows of these catalogs.  The reader's locks go with it: printing an expression locks what it reads.
pub async fn read(reader: &Reader, catalogs: &[Catalog]) -> Result<Catalogs> {
    let mut all = Vec::new();
    for catalog in catalogs {
        let columns: Vec<&str> = catalog.columns.iter().map(|column| column.sql.as_str()).collect();
        let query = format!("select {} from pg_catalog.{}", columns.join(", "), catalog.name);
        let rows = reader.client.query(&query, &[]).await;
        let rows = rows.with_context(|| format!("read {} in {}", catalog.name, reader.region))?;
        all.push(rows.iter().map(|row| (0..row.len()).map(|at| row.get(at)).collect()).collect());
    }
    let by_name = catalogs.iter().enumerate().map(|(at, catalog)| (catalog.name.clone(), at)).collect();
    Ok(Catalogs { catalogs: catalogs.to_vec(), rows: all, by_name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(name: &str, kind: &str) -> Result<Column> {
        column("pg_new", name, kind, &HashMap::new(), &[(name.to_string(), kind.to_string())])
    }

    /// A catalog of a later PostgreSQL is compared too, unless it has what nobody here can read: that is said.
    #[test]
    fn a_column_that_cannot_be_read_is_an_error() {
        assert_eq!(described("newname", "name").expect("a name").kind, Kind::Text);
        assert_eq!(described("oid", "oid").expect("its own").kind, Kind::OwnOid);
        for (name, kind) in [("newtree", "pg_node_tree"), ("newxid", "xid"), ("newref", "oid"), ("v", "anyarray")] {
            let error = described(name, kind).expect_err("nobody can compare it").to_string();
            assert!(error.contains("pg_new") && error.contains(name), "{error}");
        }
    }

    #[test]
    fn what_is_left_out_has_a_reason() {
        for line in LEFT_OUT.lines() {
            assert_eq!(line.split('\t').filter(|column| !column.is_empty()).count(), 4, "{line}");
        }
        assert!(left_out("pg_statistic", "starelid") && left_out("pg_class", "relpages"));
        assert!(!left_out("pg_class", "relname"));
    }
}
