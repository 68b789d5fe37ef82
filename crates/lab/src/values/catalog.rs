//! What a server offers, read from its catalogs: types, and what makes values of them.
//!
//! Invariant: everything is sorted by name, never by OID, so that a seed draws the same on each server.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result};
use tokio_postgres::Client;

use super::denied;
use crate::trial::sql::{quoted, rows};

pub type Oid = u32;

/// Pseudo-types that an argument may have.
pub mod pseudo {
    use super::Oid;

    pub const ANY: Oid = 2276;
    pub const CSTRING: Oid = 2275;
    pub const RECORD: Oid = 2249;
    pub const ANYELEMENT: Oid = 2283;
    pub const ANYARRAY: Oid = 2277;
    pub const ANYNONARRAY: Oid = 2776;
    pub const ANYENUM: Oid = 3500;
    pub const ANYRANGE: Oid = 3831;
    pub const ANYMULTIRANGE: Oid = 4537;
    pub const ANYCOMPATIBLE: Oid = 5077;
    pub const ANYCOMPATIBLEARRAY: Oid = 5078;
    pub const ANYCOMPATIBLENONARRAY: Oid = 5079;
    pub const ANYCOMPATIBLERANGE: Oid = 5080;
    pub const ANYCOMPATIBLEMULTIRANGE: Oid = 4538;

    pub const POLYMORPHIC: [Oid; 11] = [
        ANYELEMENT,
        ANYARRAY,
        ANYNONARRAY,
        ANYENUM,
        ANYRANGE,
        ANYMULTIRANGE,
        ANYCOMPATIBLE,
        ANYCOMPATIBLEARRAY,
        ANYCOMPATIBLENONARRAY,
        ANYCOMPATIBLERANGE,
        ANYCOMPATIBLEMULTIRANGE,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Base,
    Array,
    Composite,
    Domain,
    Enum,
    Range,
    Multirange,
}

#[derive(Clone, Debug)]
pub struct Type {
    pub oid: Oid,
    /// Its name in SQL, with its schema unless that is pg_catalog.
    pub name: String,
    pub kind: Kind,
    /// The element type of an array, the type under a domain, the subtype of a range, or the range of a multirange.
    pub of: Oid,
    pub array: Oid,
    /// The length in bytes of a type of fixed length; others are negative.
    pub length: i32,
    pub fields: Vec<(String, Oid)>,
    pub labels: Vec<String>,
    /// Strings that its input function accepts.
    pub inputs: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub arguments: Vec<Oid>,
    pub result: Oid,
    pub variadic: bool,
    pub aggregate: bool,
    pub set: bool,
    pub immutable: bool,
}

/// A way to make a value of a given type.
#[derive(Clone, Debug)]
pub enum Producer {
    Function(Function),
    Operator {
        name: String,
        left: Oid,
        right: Oid,
        result: Oid,
        immutable: bool,
    },
    Cast {
        from: Oid,
        immutable: bool,
    },
    /// A column of a system catalog.
    Column {
        relation: String,
        column: String,
    },
}

#[derive(Clone, Debug)]
pub struct OperatorClass {
    pub method: String,
    pub name: String,
    pub input: Oid,
    /// The operators that an exclusion constraint may use.
    pub operators: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Catalog {
    pub types: BTreeMap<String, Type>,
    names: HashMap<Oid, String>,
    pub producers: HashMap<Oid, Vec<Producer>>,
    /// Functions with a polymorphic result.
    pub polymorphic: Vec<Function>,
    /// By type: what takes a value of it as an argument, with the type of the result.
    pub consumers: HashMap<Oid, Vec<(Producer, Oid)>>,
    pub classes: Vec<OperatorClass>,
    /// By type: the types to which its values are cast without a function (binary-coercible).
    coercible: HashMap<Oid, Vec<Oid>>,
    pub refused: usize,
}

const TYPES: &str = "
    select t.oid, format_type(t.oid, -1), t.typtype, t.typsubscript = 'array_subscript_handler'::regproc, t.typelem, t.typarray,
           t.typbasetype, t.typlen, coalesce(r.rngsubtype, m.rngtypid, 0)
    from pg_type t left join pg_range r on r.rngtypid = t.oid left join pg_range m on m.rngmultitypid = t.oid
         left join pg_class c on c.oid = t.typrelid
    where t.typtype in ('b', 'c', 'd', 'e', 'r', 'm') and t.typisdefined and coalesce(c.relkind, 'c') in ('r', 'v', 'c', 'm', 'f', 'p')
    order by 2";
const FIELDS: &str = "
    select c.reltype, quote_ident(a.attname), a.atttypid from pg_attribute a join pg_class c on c.oid = a.attrelid
    where c.reltype <> 0 and a.attnum > 0 and not a.attisdropped order by a.attrelid, a.attnum";
const LABELS: &str = "select enumtypid, enumlabel from pg_enum order by enumtypid, enumsortorder";
const FUNCTIONS: &str = "
    select format('%I.%I', n.nspname, p.proname), p.proargtypes::text, p.prorettype, p.provariadic <> 0, p.prokind = 'a', p.proretset,
           p.provolatile = 'i', p.proname
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace left join pg_aggregate g on g.aggfnoid = p.oid
    where p.prokind in ('f', 'a') and coalesce(g.aggkind, 'n') = 'n'
    order by 1, p.oid::regprocedure::text";
const OPERATORS: &str = "
    select format('operator(%I.%s)', n.nspname, o.oprname), o.oprleft, o.oprright, o.oprresult, p.provolatile = 'i', p.proname
    from pg_operator o join pg_namespace n on n.oid = o.oprnamespace join pg_proc p on p.oid = o.oprcode
    where o.oprresult <> 0 order by 1, o.oid::regoperator::text";
const CASTS: &str = "
    select c.castsource, c.casttarget, coalesce(p.provolatile = 'i', true), c.castmethod from pg_cast c left join pg_proc p on p.oid = c.castfunc
    where c.castsource <> c.casttarget order by format_type(castsource, -1), format_type(casttarget, -1)";
const COLUMNS: &str = "
    select format('%I.%I', n.nspname, c.relname), quote_ident(a.attname), a.atttypid
    from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = 'pg_catalog' and c.relkind in ('r', 'v') and a.attnum > 0 order by 1, 2";
const CLASSES: &str = "
    select m.amname, format('%I.%I', n.nspname, c.opcname), c.opcintype,
           coalesce(string_agg(distinct 'operator(' || quote_ident(s.nspname) || '.' || o.oprname || ')', ' '), '')
    from pg_opclass c join pg_am m on m.oid = c.opcmethod join pg_namespace n on n.oid = c.opcnamespace
         left join (pg_amop a join pg_operator o on o.oid = a.amopopr and o.oprcom = o.oid and o.oprresult = 'bool'::regtype
                    join pg_namespace s on s.oid = o.oprnamespace)
             on a.amopfamily = c.opcfamily and a.amoplefttype = c.opcintype and a.amoprighttype = c.opcintype and a.amoppurpose = 's'
    where m.amname <> 'onetrip_large_object' group by 1, 2, 3 order by 1, 2, 3";

/// What to try as input of each type; most types accept some of these.
const INPUTS: [&str; 58] = [
    "",
    "0",
    "1",
    "-1",
    "2.5",
    "17",
    "a",
    "abc",
    "ä",
    "t",
    "{}",
    "[]",
    "()",
    "(0,0)",
    "(1,2)",
    "((0,0),(1,1))",
    "{1,2,1}",
    "[(0,0),(1,2)]",
    "<(0,0),1>",
    "[1,5)",
    "empty",
    "{[1,3)}",
    "{1,2,3}",
    "{a,b}",
    "{NULL}",
    "(,)",
    "2000-01-01",
    "infinity",
    "12:00",
    "12:34:56+05:30",
    "2000-01-01 12:00+02",
    "1 mon -1 day 01:00",
    "10.1.0.0/16",
    "08:00:2b:01:02:03",
    "08:00:2b:01:02:03:04:05",
    "a=>1, b=>NULL",
    "a.b.c",
    "*.a.*",
    "a & b",
    "a:1A b:2",
    "1/AB",
    "$.a[*]",
    "{\"a\": [1, null]}",
    "<a b=\"1\">c</a>",
    "10:20:10,15",
    "101",
    "\\x00ff",
    "12345678-1234-5678-9abc-def012345678",
    "pg_class",
    "pg_catalog",
    "int4pl",
    "int4pl(int4,int4)",
    "*(int4,int4)",
    "simple",
    "C",
    "POINT(1 2)",
    "1..3",
    "978-0-393-04002-9",
];

const PROBE: &str = "
    create or replace function pg_temp.probe(inputs text[]) returns table (kind oid, input text) language plpgsql as $$
    declare t record; i text;
    begin
        for t in select p.oid, format_type(p.oid, -1) as name from pg_type p left join pg_class c on c.oid = p.typrelid
                 where p.typtype in ('b', 'r', 'm', 'd') and p.typisdefined and p.typcategory <> 'A' loop
            foreach i in array inputs loop
                begin
                    execute format('select %L::%s', i, t.name);
                    kind := t.oid; input := i;
                    return next;
                exception when others then null;
                end;
            end loop;
        end loop;
    end $$";

impl Catalog {
    pub async fn read(client: &Client) -> Result<Catalog> {
        let mut catalog = Catalog::default();
        client.batch_execute("set search_path = pg_catalog").await?;
        catalog.read_types(client).await.context("read the types")?;
        catalog.read_functions(client).await.context("read the functions")?;
        catalog.read_classes(client).await.context("read the operator classes")?;
        client.batch_execute("reset search_path").await?;
        Ok(catalog)
    }

    pub fn by_oid(&self, oid: Oid) -> Option<&Type> {
        self.names.get(&oid).and_then(|name| self.types.get(name))
    }

    pub fn named(&self, name: &str) -> Oid {
        self.types.get(name).map_or(0, |t| t.oid)
    }

    /// The type below all domains.
    pub fn base(&self, oid: Oid) -> Option<&Type> {
        let mut found = self.by_oid(oid)?;
        while found.kind == Kind::Domain {
            found = self.by_oid(found.of)?;
        }
        Some(found)
    }

    /// Whether its stored bytes contain or may contain OIDs, which differ between servers.
    pub fn holds_oids(&self, oid: Oid) -> bool {
        let Some(found) = self.base(oid) else { return true };
        match found.kind {
            // The header of an array contains the OID of the element type, which is the same in all servers for
            // built-in types.
            Kind::Array => found.of >= 16384 || self.holds_oids(found.of),
            Kind::Base => found.name.starts_with("reg") || ["aclitem", "pg_node_tree"].contains(&&*found.name),
            Kind::Domain | Kind::Composite | Kind::Enum | Kind::Range | Kind::Multirange => true,
        }
    }

    /// Whether it is the row type of one of the server's own tables and views, or an array of one.
    pub fn of_system_row(&self, kind: &Type) -> bool {
        let row = if kind.kind == Kind::Array { self.by_oid(kind.of) } else { Some(kind) };
        row.is_some_and(|row| {
            row.kind == Kind::Composite
                && row.oid < 16384
                && (row.name.starts_with("pg_") || row.name.starts_with("information_schema."))
        })
    }

    pub fn coercible(&self, oid: Oid) -> &[Oid] {
        self.coercible.get(&oid).map_or(&[], Vec::as_slice)
    }

    async fn read_types(&mut self, client: &Client) -> Result<()> {
        for row in rows(client, TYPES).await? {
            let oid: Oid = row[0].parse()?;
            let (elements, base, other): (Oid, Oid, Oid) = (row[4].parse()?, row[6].parse()?, row[8].parse()?);
            let (kind, of) = match &*row[2] {
                "b" if row[3] == "t" => (Kind::Array, elements),
                "c" => (Kind::Composite, 0),
                "d" => (Kind::Domain, base),
                "e" => (Kind::Enum, 0),
                "r" => (Kind::Range, other),
                "m" => (Kind::Multirange, other),
                _ => (Kind::Base, 0),
            };
            let name = row[1].clone();
            self.names.insert(oid, name.clone());
            let (array, length) = (row[5].parse()?, row[7].parse()?);
            let (fields, labels, inputs) = Default::default();
            self.types.insert(name.clone(), Type { oid, name, kind, of, array, length, fields, labels, inputs });
        }
        for row in rows(client, FIELDS).await? {
            if let Some(found) = self.by_oid_mut(row[0].parse()?) {
                found.fields.push((row[1].clone(), row[2].parse()?));
            }
        }
        for row in rows(client, LABELS).await? {
            if let Some(found) = self.by_oid_mut(row[0].parse()?) {
                found.labels.push(row[1].clone());
            }
        }
        client.batch_execute(PROBE).await?;
        let inputs: Vec<String> = INPUTS.iter().map(|input| quoted(input)).collect();
        let probe = format!("select kind, input from pg_temp.probe(array[{}])", inputs.join(", "));
        for row in rows(client, &probe).await? {
            if let Some(found) = self.by_oid_mut(row[0].parse()?) {
                found.inputs.push(row[1].clone());
            }
        }
        Ok(())
    }

    fn by_oid_mut(&mut self, oid: Oid) -> Option<&mut Type> {
        self.names.get(&oid).and_then(|name| self.types.get_mut(name))
    }

    /// Whether the generator can make a value for an argument of this type.
    fn can_be_given(&self, oid: Oid) -> bool {
        [pseudo::ANY, pseudo::CSTRING, pseudo::RECORD].contains(&oid)
            || pseudo::POLYMORPHIC.contains(&oid)
            || self.names.contains_key(&oid)
    }

    async fn read_functions(&mut self, client: &Client) -> Result<()> {
        for row in rows(client, FUNCTIONS).await? {
            if denied::reason(&row[7], &row[0]).is_some() {
                self.refused += 1;
                continue;
            }
            let arguments = row[1].split_whitespace().map(str::parse).collect::<Result<Vec<Oid>, _>>()?;
            let function = Function {
                name: row[0].clone(),
                arguments,
                result: row[2].parse()?,
                variadic: row[3] == "t",
                aggregate: row[4] == "t",
                set: row[5] == "t",
                immutable: row[6] == "t",
            };
            if !function.arguments.iter().all(|&argument| self.can_be_given(argument)) {
                continue;
            }
            if pseudo::POLYMORPHIC.contains(&function.result) {
                self.polymorphic.push(function);
            } else if self.names.contains_key(&function.result) {
                let (result, arguments) = (function.result, function.arguments.clone());
                let producer = Producer::Function(function);
                self.add(producer, result, &arguments);
            }
        }
        for row in rows(client, OPERATORS).await? {
            if denied::reason(&row[5], &row[5]).is_some() {
                continue;
            }
            let (left, right, result): (Oid, Oid, Oid) = (row[1].parse()?, row[2].parse()?, row[3].parse()?);
            let known = |&oid: &Oid| oid == 0 || self.names.contains_key(&oid);
            if [left, right, result].iter().all(known) {
                let producer =
                    Producer::Operator { name: row[0].clone(), left, right, result, immutable: row[4] == "t" };
                self.add(producer, result, &[left, right]);
            }
        }
        for row in rows(client, CASTS).await? {
            let (from, to): (Oid, Oid) = (row[0].parse()?, row[1].parse()?);
            if self.names.contains_key(&from) && self.names.contains_key(&to) {
                self.add(Producer::Cast { from, immutable: row[2] == "t" }, to, &[from]);
                if row[3] == "b" {
                    self.coercible.entry(from).or_default().push(to);
                }
            }
        }
        for row in rows(client, COLUMNS).await? {
            let of: Oid = row[2].parse()?;
            let producer = Producer::Column { relation: row[0].clone(), column: row[1].clone() };
            self.producers.entry(of).or_default().push(producer);
        }
        Ok(())
    }

    fn add(&mut self, producer: Producer, result: Oid, arguments: &[Oid]) {
        for (position, argument) in arguments.iter().enumerate() {
            if !arguments[..position].contains(argument) {
                self.consumers.entry(*argument).or_default().push((producer.clone(), result));
            }
        }
        self.producers.entry(result).or_default().push(producer);
    }

    async fn read_classes(&mut self, client: &Client) -> Result<()> {
        for row in rows(client, CLASSES).await? {
            self.classes.push(OperatorClass {
                method: row[0].clone(),
                name: row[1].clone(),
                input: row[2].parse()?,
                operators: row[3].split(' ').filter(|o| !o.is_empty()).map(str::to_string).collect(),
            });
        }
        Ok(())
    }

    /// The operator classes that accept the type.
    pub fn classes_of(&self, oid: Oid) -> Vec<&OperatorClass> {
        let Some(base) = self.base(oid) else { return Vec::new() };
        let general: &[Oid] = match base.kind {
            Kind::Array => &[pseudo::ANYARRAY],
            Kind::Enum => &[pseudo::ANYENUM],
            Kind::Range => &[pseudo::ANYRANGE],
            Kind::Multirange => &[pseudo::ANYMULTIRANGE],
            Kind::Composite => &[pseudo::RECORD],
            Kind::Base | Kind::Domain => &[],
        };
        let takes = |class: &&OperatorClass| {
            class.input == base.oid || general.contains(&class.input) || self.coercible(base.oid).contains(&class.input)
        };
        self.classes.iter().filter(takes).collect()
    }
}
