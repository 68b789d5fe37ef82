//! Are all definitions the same everywhere?  Compares every row of every catalog, with each OID replaced by the name of
//! the object that it refers to.
//!
//! A row is identified by its catalog's unique index: `pg_class` by schema and name, `pg_constraint` by name and table
//! or type.  The rows that it refers to are identified in the same way, and so on, until only names are left.
//!
//! Not compared are temporary objects, functions that depend on them, what belongs to the server's other databases, and
//! the members of an extension that is reported to differ as a whole.  An object that is missing in a region is
//! reported once, without the objects that depend on it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use anyhow::{Context, Result};
use serde::Serialize;

use super::catalogs::{self, Catalogs, Kind, Row, LARGE_OBJECTS, LARGE_OBJECT_PAGES};
use super::snapshots::Reader;

/// A definition that is not the same everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Definition {
    pub catalog: String,
    pub object: String,
    /// The catalog's column that differs; `None` if some region lacks the object, or has another number of them.
    pub column: Option<String>,
    /// In the order of the report's regions; `None`: that region has no such object.
    pub values: Vec<Option<String>>,
}

impl Definition {
    /// Whether both are about the same column of the same object, whatever its values.
    pub fn is_about_what(&self, other: &Definition) -> bool {
        self.object == other.object && self.column == other.column && self.catalog == other.catalog
    }
}

pub struct Compared {
    pub different: Vec<Definition>,
    /// How many rows of each catalog were compared, in the first region.
    pub catalogs: BTreeMap<String, usize>,
}

/// Compares the definitions, except the members of the extensions in `without`.
pub async fn compare(readers: &[Reader], without: &BTreeSet<String>) -> Result<Compared> {
    let plan = catalogs::plan(&readers[0]).await?;
    let mut regions = Vec::new();
    for reader in readers {
        let theirs = catalogs::plan(reader).await?;
        if theirs != plan {
            anyhow::bail!("{} has other catalogs than {}: are they of one version?", reader.region, readers[0].region);
        }
        reader.begin_look().await?;
        let catalogs = catalogs::read(reader, &plan).await?;
        reader.end_look().await?;
        let region = Region::new(catalogs, &database(reader).await?, without);
        regions.push(region);
    }
    let objects: Vec<Vec<Objects>> = regions.iter().map(Region::objects).collect();
    let counts =
        plan.iter().zip(&objects[0]).map(|(catalog, of)| (catalog.name.clone(), of.values().map(Vec::len).sum()));
    let mut found = Differences { regions: &regions, objects: &objects, list: Vec::new() };
    for catalog in 0..plan.len() {
        found.of_catalog(catalog);
    }
    Ok(Compared { catalogs: counts.collect(), different: found.told() })
}

async fn database(reader: &Reader) -> Result<String> {
    let row = reader.client.query_one("select current_database()::text", &[]).await;
    Ok(row.with_context(|| format!("ask {} for its database", reader.region))?.get(0))
}

/// The name of the object that an OID refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Is(Rc<str>),
    /// The object is not compared: it is temporary, for example, or belongs to another database.
    LeftOut,
    Missing,
}

/// An object: the place of its catalog, and its OID.
type At = (usize, u32);

/// The rows of a catalog by their names: several rows if the name does not tell them apart.
type Objects = BTreeMap<Rc<str>, Vec<usize>>;

/// The catalogs of one region, and the names of the objects in them.
struct Region {
    all: Catalogs,
    by_oid: Vec<HashMap<u32, usize>>,
    /// By the OID of a TOAST table, or of its index: the table that it belongs to.
    toast: HashMap<u32, u32>,
    left_out: HashSet<At>,
    /// For each object, the objects that it is a part of, and is dropped with.
    part_of: HashMap<At, Vec<At>>,
    names: RefCell<HashMap<At, Name>>,
}

fn number(row: &Row, column: Option<usize>) -> u32 {
    column.and_then(|at| row[at].as_deref()).and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Region {
    fn new(all: Catalogs, database: &str, without: &BTreeSet<String>) -> Region {
        let by_oid = all.catalogs.iter().zip(&all.rows).map(|(catalog, rows)| match catalog.own_oid() {
            None => HashMap::new(),
            Some(own) => rows.iter().enumerate().map(|(at, row)| (number(row, Some(own)), at)).collect(),
        });
        let mut region = Region {
            by_oid: by_oid.collect(),
            toast: HashMap::new(),
            left_out: HashSet::new(),
            part_of: HashMap::new(),
            names: RefCell::default(),
            all,
        };
        region.find_toast();
        region.leave_out_toast_copies();
        region.leave_out("pg_database", "datname", |name| name != database);
        region.leave_out("pg_namespace", "nspname", |name| {
            name.starts_with("pg_temp_") || name.starts_with("pg_toast_temp_")
        });
        region.leave_out_temporary_functions();
        region.leave_out("pg_extension", "extname", |name| without.contains(name));
        region.find_parts();
        region
    }

    fn each<'a>(&'a self, catalog: &str) -> impl Iterator<Item = &'a Row> {
        self.all.by_name.get(catalog).map(|at| &self.all.rows[*at]).into_iter().flatten()
    }

    /// The place of a column in a catalog's rows.
    fn column(&self, catalog: &str, column: &str) -> Option<usize> {
        self.all.by_name.get(catalog).and_then(|at| self.all.catalogs[*at].column(column))
    }

    fn find_toast(&mut self) {
        let [own, toast] = ["oid", "reltoastrelid"].map(|c| self.column("pg_class", c));
        let mut owners: HashMap<u32, u32> =
            self.each("pg_class").map(|row| (number(row, toast), number(row, own))).collect();
        owners.remove(&0);
        let [index, table] = ["indexrelid", "indrelid"].map(|c| self.column("pg_index", c));
        let indexes: Vec<(u32, u32)> = self
            .each("pg_index")
            .filter_map(|row| Some((number(row, index), *owners.get(&number(row, table))?)))
            .collect();
        owners.extend(indexes);
        self.toast = owners;
    }

    /// What a job builds in the place of a TOAST table's index is in its region's catalogs for as long as that takes.
    fn leave_out_toast_copies(&mut self) {
        let (Some(at), Some(name)) = (self.all.by_name.get("pg_class").copied(), self.column("pg_class", "relname"))
        else {
            return;
        };
        let own = self.all.catalogs[at].own_oid();
        let copies = self.all.rows[at].iter().filter(|row| {
            self.toast.contains_key(&number(row, own))
                && row[name].as_deref().is_some_and(|name| name.contains("_index_reindex"))
        });
        self.left_out.extend(copies.map(|row| (at, number(row, own))));
    }

    fn leave_out(&mut self, catalog: &str, column: &str, which: impl Fn(&str) -> bool) {
        let (Some(at), Some(column)) = (self.all.by_name.get(catalog).copied(), self.column(catalog, column)) else {
            return;
        };
        let own = self.all.catalogs[at].own_oid();
        let rows = self.all.rows[at].iter().filter(|row| row[column].as_deref().is_some_and(&which));
        self.left_out.extend(rows.map(|row| (at, number(row, own))));
    }

    /// A function that depends on a temporary object lives no longer than that, in one region.  So does a function that
    /// calls such a one in its body, or an aggregate of such ones.
    fn leave_out_temporary_functions(&mut self) {
        let [class, object, ref_class, ref_object] =
            ["classid", "objid", "refclassid", "refobjid"].map(|c| self.column("pg_depend", c));
        let Some(functions) = self.all.by_name.get("pg_proc").copied() else { return };
        loop {
            let temporary = |row: &&Row| {
                let at = (functions, number(row, object));
                let whole = self.catalog_of(number(row, ref_class)).map(|catalog| (catalog, number(row, ref_object)));
                self.catalog_of(number(row, class)) == Some(functions)
                    && !self.left_out.contains(&at)
                    && whole.is_some_and(|whole| self.name_of(whole) == Name::LeftOut)
            };
            let found: Vec<u32> = self.each("pg_depend").filter(temporary).map(|row| number(row, object)).collect();
            self.names.borrow_mut().clear();
            if found.is_empty() {
                return;
            }
            self.left_out.extend(found.into_iter().map(|oid| (functions, oid)));
        }
    }

    /// Learns from `pg_depend` which objects are members of extensions that are left out, and which are parts of
    /// others.
    fn find_parts(&mut self) {
        let [class, object, ref_class, ref_object, kind] =
            ["classid", "objid", "refclassid", "refobjid", "deptype"].map(|c| self.column("pg_depend", c));
        let mut members = Vec::new();
        let mut parts = Vec::new();
        for row in self.each("pg_depend") {
            let catalogs = (self.catalog_of(number(row, class)), self.catalog_of(number(row, ref_class)));
            let (Some(catalog), Some(ref_catalog)) = catalogs else { continue };
            let at = (catalog, number(row, object));
            let whole = (ref_catalog, number(row, ref_object));
            match kind.and_then(|kind| row[kind].as_deref()) {
                Some("e") if self.left_out.contains(&whole) => members.push(at),
                Some("a" | "i" | "P" | "S") => parts.push((at, whole)),
                _ => {}
            }
        }
        self.left_out.extend(members);
        for (at, whole) in parts {
            self.part_of.entry(at).or_default().push(whole);
        }
    }

    /// The place of the catalog with this OID.
    fn catalog_of(&self, oid: u32) -> Option<usize> {
        let classes = *self.all.by_name.get("pg_class")?;
        let row = &self.all.rows[classes][*self.by_oid[classes].get(&oid)?];
        let name = row[self.all.catalogs[classes].column("relname")?].as_deref()?;
        let name = if name == LARGE_OBJECT_PAGES { LARGE_OBJECTS } else { name };
        self.all.by_name.get(name).copied()
    }

    fn name_of(&self, at: At) -> Name {
        if let Some(known) = self.names.borrow().get(&at) {
            return known.clone();
        }
        let name = match self.by_oid[at.0].get(&at.1) {
            _ if self.left_out.contains(&at) => Name::LeftOut,
            Some(row) => self.name_of_row(at.0, &self.all.rows[at.0][*row]),
            None => Name::Missing,
        };
        self.names.borrow_mut().insert(at, name.clone());
        name
    }

    fn name_of_row(&self, catalog: usize, row: &Row) -> Name {
        let described = &self.all.catalogs[catalog];
        let own = number(row, described.own_oid());
        if self.left_out.contains(&(catalog, own)) {
            return Name::LeftOut;
        }
        if described.name == "pg_class" {
            if let Some(table) = self.toast.get(&own) {
                let kind = described.column("relkind").and_then(|kind| row[kind].as_deref());
                return match self.name_of((catalog, *table)) {
                    Name::Is(name) if kind == Some("i") => Name::Is(format!("TOAST index of {name}").into()),
                    Name::Is(name) => Name::Is(format!("TOAST of {name}").into()),
                    other => other,
                };
            }
        }
        let (mut schema, mut main, mut rest) = (String::new(), Vec::new(), Vec::new());
        let key = self.key_of(catalog, row);
        let has_name = key.iter().any(|column| described.columns[*column].is_name);
        for &column in &key {
            let Some(shown) = self.shown(catalog, row, column) else { return Name::LeftOut };
            let shown = shown.unwrap_or_default();
            match &described.columns[column].kind {
                Kind::Reference(target) if target == "pg_namespace" && has_name => schema = format!("{shown}."),
                _ if described.columns[column].is_name => main.push(quoted(&shown)),
                _ if shown != "-" => rest.push(shown),
                _ => {}
            }
        }
        let mut name = schema + &main.join(".");
        if !rest.is_empty() || main.is_empty() {
            name += &format!("{}({})", if main.is_empty() { "" } else { " " }, rest.join(", "));
        }
        Name::Is(name.into())
    }

    /// The columns that identify a row.  The name of a foreign key's trigger contains an OID, so such a trigger is
    /// identified by other columns.
    fn key_of(&self, catalog: usize, row: &Row) -> Vec<usize> {
        let described = &self.all.catalogs[catalog];
        if described.name == "pg_trigger" {
            let internal = described.column("tgisinternal").and_then(|column| row[column].as_deref());
            if internal == Some("true") {
                let columns = ["tgrelid", "tgconstraint", "tgfoid"];
                return columns.iter().filter_map(|column| described.column(column)).collect();
            }
        }
        described.key.clone()
    }

    /// The objects that a column refers to.
    fn references(&self, catalog: usize, row: &Row, column: usize) -> Vec<At> {
        let target = match &self.all.catalogs[catalog].columns[column].kind {
            Kind::Reference(target) | Kind::References(target) => self.all.by_name.get(target).copied(),
            Kind::Object(class) => self.catalog_of(number(row, Some(*class))),
            _ => None,
        };
        let Some(target) = target else { return Vec::new() };
        oids(row[column].as_deref().unwrap_or("")).filter(|oid| *oid != 0).map(|oid| (target, oid)).collect()
    }

    /// A value, with names instead of OIDs.  `None`: it refers to something that is left out.  `Some(None)`: it is
    /// null.
    fn shown(&self, catalog: usize, row: &Row, column: usize) -> Option<Option<String>> {
        let Some(value) = row[column].as_deref() else { return Some(None) };
        let kind = &self.all.catalogs[catalog].columns[column].kind;
        let target = match kind {
            Kind::Reference(target) | Kind::References(target) => self.all.by_name.get(target).copied(),
            Kind::Object(class) => self.catalog_of(number(row, Some(*class))),
            Kind::OwnOid | Kind::Secret | Kind::Text => return Some(Some(value.to_string())),
        };
        // `None`: a catalog that is left out as a whole.
        let target = target?;
        let mut names = Vec::new();
        for oid in oids(value) {
            names.push(match oid {
                0 => "-".to_string(),
                oid => match self.name_of((target, oid)) {
                    Name::Is(name) => name.to_string(),
                    Name::LeftOut => return None,
                    Name::Missing => "nothing that exists".to_string(),
                },
            });
        }
        Some(Some(names.join(", ")))
    }

    fn objects(&self) -> Vec<Objects> {
        let mut all = Vec::new();
        for (catalog, rows) in self.all.rows.iter().enumerate() {
            let mut objects = Objects::new();
            for (at, row) in rows.iter().enumerate() {
                if let Name::Is(name) = self.name_of_row(catalog, row) {
                    objects.entry(name).or_default().push(at);
                }
            }
            all.push(objects);
        }
        all
    }

    /// All values of a row, except those that identify it.
    fn values(&self, catalog: usize, row: usize) -> Vec<(usize, String)> {
        let row = &self.all.rows[catalog][row];
        let described = &self.all.catalogs[catalog];
        let key = self.key_of(catalog, row);
        let internal = key != described.key;
        (0..described.columns.len())
            .filter(|column| described.columns[*column].kind != Kind::OwnOid && !key.contains(column))
            .filter(|column| !(internal && described.columns[*column].is_name))
            .map(|column| {
                let shown = match self.shown(catalog, row, column) {
                    None => "(not compared)".to_string(),
                    Some(None) => "NULL".to_string(),
                    Some(Some(shown)) => shown,
                };
                (column, shown)
            })
            .collect()
    }

    /// The objects that the row depends on.
    fn hangs_on(&self, catalog: usize, row: usize) -> Vec<At> {
        let row = &self.all.rows[catalog][row];
        let described = &self.all.catalogs[catalog];
        let mut all: Vec<At> =
            self.key_of(catalog, row).iter().flat_map(|column| self.references(catalog, row, *column)).collect();
        let own = (catalog, number(row, described.own_oid()));
        all.extend(self.part_of.get(&own).into_iter().flatten());
        all
    }

    fn word(&self, catalog: usize, row: usize) -> String {
        let described = &self.all.catalogs[catalog];
        let kind = described.column("relkind").and_then(|kind| self.all.rows[catalog][row][kind].as_deref());
        let word = match (described.name.as_str(), kind) {
            ("pg_class", Some("r")) => "table",
            ("pg_class", Some("i")) => "index",
            ("pg_class", Some("S")) => "sequence",
            ("pg_class", Some("t")) => "table",
            ("pg_class", Some("v")) => "view",
            ("pg_class", Some("m")) => "materialized view",
            ("pg_class", Some("c")) => "composite type",
            ("pg_class", Some("f")) => "foreign table",
            ("pg_class", Some("p")) => "partitioned table",
            ("pg_class", Some("I")) => "partitioned index",
            ("pg_attribute", _) => "column",
            ("pg_attrdef", _) => "default",
            ("pg_proc", _) => "function",
            (LARGE_OBJECTS, _) => "large object",
            ("pg_authid", _) => "role",
            ("pg_auth_members", _) => "membership",
            ("pg_namespace", _) => "schema",
            ("pg_rewrite", _) => "rule",
            ("pg_db_role_setting", _) => "settings of",
            ("pg_description" | "pg_shdescription", _) => "comment",
            ("pg_depend" | "pg_shdepend", _) => "dependency",
            ("pg_enum", _) => "label",
            ("pg_init_privs", _) => "first privileges",
            ("pg_default_acl", _) => "default privileges",
            ("pg_parameter_acl", _) => "privileges on parameter",
            ("pg_seclabel" | "pg_shseclabel", _) => "security label",
            ("pg_statistic_ext", _) => "statistics",
            ("pg_am", _) => "access method",
            ("pg_amop", _) => "operator of a family",
            ("pg_amproc", _) => "function of a family",
            ("pg_opclass", _) => "operator class",
            ("pg_opfamily", _) => "operator family",
            ("pg_inherits", _) => "inheritance",
            ("pg_ts_config", _) => "text search configuration",
            ("pg_ts_config_map", _) => "text search mapping",
            ("pg_ts_dict", _) => "text search dictionary",
            ("pg_ts_parser", _) => "text search parser",
            ("pg_ts_template", _) => "text search template",
            ("pg_index", _) => "definition of index",
            ("pg_sequence", _) => "definition of sequence",
            (name, _) => return name.trim_start_matches("pg_").replace('_', " "),
        };
        word.to_string()
    }
}

/// Reads `{1,2}`, `1 2` or `1`.
fn oids(text: &str) -> impl Iterator<Item = u32> + '_ {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|oid| oid.parse().ok())
}

/// Quotes a name that contains a character that separates names here.
fn quoted(name: &str) -> String {
    match name.contains(|c: char| ".(),\"".contains(c) || c.is_whitespace()) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_string(),
    }
}

struct Differences<'a> {
    regions: &'a [Region],
    objects: &'a [Vec<Objects>],
    list: Vec<Found>,
}

struct Found {
    definition: Definition,
    /// The object, and the objects that it depends on, in a region that has it.
    name: (usize, Rc<str>),
    on: Vec<(usize, Rc<str>)>,
    /// Only for a row of `pg_depend` or `pg_shdepend`: the object that depends.
    subject: Option<(usize, Rc<str>)>,
}

impl Differences<'_> {
    fn of_catalog(&mut self, catalog: usize) {
        let names: BTreeSet<&Rc<str>> = self.objects.iter().flat_map(|region| region[catalog].keys()).collect();
        for name in names {
            let rows: Vec<&[usize]> =
                self.objects.iter().map(|region| region[catalog].get(name).map_or(&[][..], Vec::as_slice)).collect();
            self.of_object(catalog, name, &rows);
        }
    }

    fn of_object(&mut self, catalog: usize, name: &Rc<str>, rows: &[&[usize]]) {
        let mut values: Vec<Vec<Vec<(usize, String)>>> = Vec::new();
        for (region, rows) in self.regions.iter().zip(rows) {
            let mut of_region: Vec<_> = rows.iter().map(|row| region.values(catalog, *row)).collect();
            of_region.sort();
            values.push(of_region);
        }
        if values.iter().all(|of_region| *of_region == values[0]) {
            return;
        }
        let described = &self.regions[0].all.catalogs[catalog];
        let with = rows.iter().position(|rows| !rows.is_empty()).unwrap_or(0);
        let object = format!("{} {name}", self.regions[with].word(catalog, rows[with][0]));
        let named = |at: At| match self.regions[with].name_of(at) {
            Name::Is(name) => Some((at.0, name)),
            Name::LeftOut | Name::Missing => None,
        };
        let hangs_on = self.regions[with].hangs_on(catalog, rows[with][0]);
        let on: Vec<_> =
            hangs_on.into_iter().filter_map(named).filter(|on| *on != (catalog, Rc::clone(name))).collect();
        let subject = match described.name.as_str() {
            "pg_depend" | "pg_shdepend" => described.column("objid").and_then(|column| {
                let row = &self.regions[with].all.rows[catalog][rows[with][0]];
                self.regions[with].references(catalog, row, column).into_iter().find_map(named)
            }),
            _ => None,
        };
        let mut add = |column: Option<usize>, values: Vec<Option<String>>| {
            let column = column.map(|at| described.columns[at].name.clone());
            let definition = Definition { catalog: described.name.clone(), object: object.clone(), column, values };
            let name = (catalog, Rc::clone(name));
            self.list.push(Found { definition, name, on: on.clone(), subject: subject.clone() });
        };
        if rows.iter().any(|rows| rows.is_empty()) {
            let there = rows.iter().map(|rows| (!rows.is_empty()).then(|| "there".to_string()));
            add(None, there.collect());
            return;
        }
        if rows.iter().any(|other| other.len() != rows[0].len()) {
            add(None, rows.iter().map(|rows| Some(format!("{} times", rows.len()))).collect());
            return;
        }
        for place in 0..rows[0].len() {
            for at in 0..values[0][place].len() {
                let column = values[0][place][at].0;
                let of_column: Vec<Option<String>> = values
                    .iter()
                    .map(|region| region[place].iter().find(|(c, _)| *c == column).map(|(_, value)| value.clone()))
                    .collect();
                if of_column.iter().any(|value| *value != of_column[0]) {
                    let secret = described.columns[column].kind == Kind::Secret;
                    add(Some(column), if secret { hidden(&of_column) } else { of_column });
                }
            }
        }
    }

    /// The differences to report: without objects that depend on a missing one, and without dependencies of objects
    /// that are reported anyway.
    fn told(self) -> Vec<Definition> {
        let regions = self.regions.len();
        let missing: HashSet<(usize, usize, Rc<str>)> = self
            .list
            .iter()
            .filter(|found| found.definition.column.is_none())
            .flat_map(|found| {
                let without = (0..regions).filter(|region| found.definition.values[*region].is_none());
                without.map(|region| (region, found.name.0, Rc::clone(&found.name.1)))
            })
            .collect();
        let hangs = |found: &Found| {
            let mut without = (0..regions).filter(|region| found.definition.values[*region].is_none()).peekable();
            found.definition.column.is_none()
                && without.peek().is_some()
                && without.all(|region| found.on.iter().any(|on| missing.contains(&(region, on.0, Rc::clone(&on.1)))))
        };
        let others: HashSet<(usize, Rc<str>)> = self
            .list
            .iter()
            .filter(|found| found.subject.is_none())
            .flat_map(|found| std::iter::once(&found.name).chain(&found.on))
            .cloned()
            .collect();
        let kept =
            |found: &&Found| !hangs(found) && !found.subject.as_ref().is_some_and(|subject| others.contains(subject));
        let told: Vec<Definition> = self.list.iter().filter(kept).map(|found| found.definition.clone()).collect();
        if told.is_empty() {
            return self.list.into_iter().map(|found| found.definition).collect();
        }
        told
    }
}

/// Replaces digests of secrets by numbers, which show only which secrets are equal.
fn hidden(digests: &[Option<String>]) -> Vec<Option<String>> {
    let mut seen: Vec<&String> = Vec::new();
    let mut shown = Vec::new();
    for digest in digests {
        shown.push(digest.as_ref().map(|digest| {
            if digest == "NULL" {
                return digest.clone();
            }
            let at = seen.iter().position(|other| *other == digest).unwrap_or_else(|| {
                seen.push(digest);
                seen.len() - 1
            });
            format!("secret {} (not shown)", at + 1)
        }));
    }
    shown
}
