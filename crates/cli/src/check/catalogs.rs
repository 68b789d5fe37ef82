//! Reads every system catalog of a server, as it is at the position, column by column.
//!
//! The server itself says which catalogs and columns there are, what each column refers to
//! (`pg_get_catalog_foreign_keys()`) and by which columns a row is identified (the catalog's unique indexes).
//! `docs/census/catalogs.tsv` lists what is left out, with the reason.  A column that this file cannot read is an
//! error: nothing is left out silently.
//!
//! Rows are read in the reader's snapshot.  Expressions are the exception: the server prints them with the names that
//! objects have at that moment.

use std::collections::{BTreeMap, HashMap};

use anyhow::{bail, Context, Result};

use super::snapshots::Reader;

/// Columns of the file: catalog, column or `*`, versions, reason.
const LEFT_OUT: &str = include_str!("../../../../docs/census/catalogs.tsv");

/// How each stored expression is printed: each is a node tree that its own function of the server prints.
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

/// Compared by a digest, which is not shown.
const SECRETS: &[(&str, &str)] = &[("pg_authid", "rolpassword"), ("pg_user_mapping", "umoptions")];

/// Columns of a sequence that differ between regions on purpose, because each region counts from a start of its own;
/// and when they do.  What the owner wrote is in the sequence's reloptions.
const SHARES: &[(&str, &str, &str)] = &[
    ("pg_sequence", "seqstart", "true"),
    ("pg_sequence", "seqmin", "seqcycle and seqincrement > 0"),
    ("pg_sequence", "seqmax", "seqcycle and seqincrement < 0"),
];

/// The state of an index of CREATE INDEX CONCURRENTLY, which each region builds in its own time, counts as what it will
/// be.
const BUILT_BY_JOBS: &[&str] = &["indisready", "indisvalid"];

/// Minor releases of 2026 store a version of each column in `attoptions`.  It is a position in one server's own WAL, so
/// it is left out.
const OPTIONS: &str = "(select array_agg(o order by place) from unnest(attoptions) with ordinality as u(o, place)
     where o not like 'pg\\_attver=%')::text";

/// Values that a dropped column keeps although they mean nothing any more: what they refer to may be gone, so that only
/// a number would be printed.
const OF_COLUMNS_THAT_ARE: &[(&str, &str)] = &[("attcollation", "'0'"), ("attacl", "null"), ("attfdwoptions", "null")];

/// Its OIDs are the numbers of large objects, which are alike in all regions.  What refers to one names the catalog
/// with the pages instead.
pub const LARGE_OBJECTS: &str = "pg_largeobject_metadata";
pub const LARGE_OBJECT_PAGES: &str = "pg_largeobject";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    OwnOid,
    /// The OID of a row of that catalog.
    Reference(String),
    /// Several OIDs of rows of that catalog.
    References(String),
    /// The OID of a row of the catalog that another column, at this place, names.
    Object(usize),
    Secret,
    Text,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub kind: Kind,
    sql: String,
    /// Whether this is a name: the names in a key come first when an object is printed, and the rest follows.
    pub is_name: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    pub name: String,
    pub columns: Vec<Column>,
    /// The columns that identify a row in every region; all columns if the catalog has no suitable unique index.
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

/// All rows of all catalogs in one region.
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

/// The best index of a catalog comes first: one that has a name in it, then the one that PostgreSQL calls the primary
/// key.
const KEYS: &str = "
select c.relname::text, array(select a.attname::text from pg_attribute a where a.attrelid = i.indexrelid order by a.attnum)
from pg_class c join pg_index i on i.indrelid = c.oid join pg_class n on n.oid = i.indexrelid
where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r' and c.oid < 16384 and i.indisunique
    and not exists (select from pg_attribute a where a.attrelid = i.indexrelid and a.attname = 'oid')
order by not exists (select from pg_attribute a where a.attrelid = i.indexrelid
                     and a.atttypid in ('name'::regtype, 'cstring'::regtype, 'text'::regtype)),
    not i.indisprimary, n.relname::text collate \"C\"";

/// The catalogs and columns to compare, as this server describes them.
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
        // The other column's place was not known before all columns were there.
        if let Kind::Object(_) = columns[at].kind {
            let class = class_column(&columns[at].name);
            let Some(place) = columns.iter().position(|c| c.name == class) else {
                bail!("onetrip check does not know what {name}.{} refers to", columns[at].name);
            };
            columns[at].kind = Kind::Object(place);
        }
    }
    let all = || (0..columns.len()).filter(|at| columns[*at].kind != Kind::OwnOid).collect();
    let own_oid = columns.iter().position(|c| c.kind == Kind::OwnOid);
    let key = match keys.get(&name) {
        None if name == LARGE_OBJECTS => own_oid.into_iter().collect(),
        None => all(),
        Some(key) => {
            let place = |column: &String| columns.iter().position(|c| c.name == *column);
            key.iter().map(place).collect::<Option<Vec<_>>>().unwrap_or_else(all)
        }
    };
    Ok(Catalog { name, columns, key })
}

/// `objid` belongs to `classid`, `objoid` to `classoid`, and `refobjid` to `refclassid`.
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
    if catalog == "pg_index" && BUILT_BY_JOBS.contains(&name) {
        let built = format!("(indexrelid in (select index from onetrip.job_here) or {name})::text");
        return made(Kind::Text, built);
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

/// SQL for a value of a sequence: if the value is what `sequence_share.c` computes for this region, SQL says only that.
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

/// Reads all rows of these catalogs.  Call it between `begin_look` and `end_look`, because printing an expression locks
/// what it reads.
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

    /// Goal: DDL that runs beside other DDL is compared in all that a check would compare.  Method: the digest leaves
    /// out what this file does, and these few more.
    #[test]
    fn the_digest_of_catalogs_leaves_out_the_same() {
        const MORE: &[(&str, &str)] = &[("pg_class", "relispopulated"), ("pg_class", "reltoastrelid")];
        let source = include_str!("../../../../extension/src/ddl/catalog_digest.c");
        let list = source.split("left_out[] =").nth(1).and_then(|rest| rest.split("};").next()).expect("the list");
        let whole = list.matches("NULL}").count();
        let mut columns: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        let rows: Vec<Vec<&str>> = LEFT_OUT.lines().skip(1).map(|line| line.split('\t').collect()).collect();
        // Large objects are compared by the check, as rows; and a rule's condition is printed with the rule.
        let catalogs = rows.iter().filter(|row| row[1] == "*").count() + 1;
        assert_eq!(whole, catalogs, "whole catalogs");
        let here = rows.iter().filter(|row| row[1] != "*" && row[1] != "ev_qual").map(|row| row[1]);
        let shares = SHARES.iter().map(|(_, column, _)| *column);
        let mut expected: Vec<&str> = here.chain(shares).chain(MORE.iter().map(|(_, column)| *column)).collect();
        columns.sort_unstable();
        expected.sort_unstable();
        assert_eq!(columns, expected);
    }

    /// Goal: a catalog of a later PostgreSQL is compared too; a column that cannot be read is an error.
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
