//! Random expressions of a given type, made from what the server offers: functions, operators, casts, aggregates,
//! constructors, columns of its catalogs, and extreme values.
//!
//! Each expression is complete SQL, so a failure can be repeated by pasting it.

use super::catalog::{pseudo, Catalog, Function, Kind, Oid, Producer, Type};
use crate::torture::random::Random;
use crate::trial::sql::quoted;

const DEPTH: u32 = 3;
/// An expression that is longer than this gets only leaves from here on.
const LENGTH_MAX: usize = 2_000;
/// Functions with an argument that says how long the result is; that argument is kept small.
const SIZED: [&str; 6] = ["repeat", "lpad", "rpad", "array_fill", "gen_random_bytes", "st_generatepoints"];

pub struct Generator<'a> {
    pub catalog: &'a Catalog,
    pub random: Random,
    /// If the expression is about a column: the type and the name of that column.
    column: Option<(Oid, String)>,
    /// Use only immutable functions, as an index must.
    immutable: bool,
    length: usize,
}

impl<'a> Generator<'a> {
    pub fn new(catalog: &'a Catalog, random: Random) -> Generator<'a> {
        Generator { catalog, random, column: None, immutable: false, length: 0 }
    }

    /// A random value of the type.
    pub fn value(&mut self, of: Oid) -> String {
        (self.column, self.immutable, self.length) = (None, false, 0);
        self.expression(of, DEPTH)
    }

    /// A value that the server is likely to accept.
    pub fn simple_value(&mut self, of: Oid) -> String {
        (self.column, self.immutable, self.length) = (None, false, 0);
        self.leaf(of, 1)
    }

    /// The result of an immutable function, operator or cast, as an index may compute it, of a random type.
    pub fn immutable_value(&mut self) -> Option<String> {
        (self.column, self.immutable, self.length) = (None, true, 0);
        let all = self.catalog.types.len();
        let skipped = self.random.index(all);
        let of = self.catalog.types.values().nth(skipped)?.oid;
        let producers = self.catalog.producers.get(&of).map_or(&[][..], Vec::as_slice);
        let made = match producers.is_empty() {
            true => None,
            false => {
                let producer = &producers[self.random.index(producers.len())];
                self.of_producer(producer, of, 1)
            }
        };
        self.immutable = false;
        made
    }

    /// A new value for a column, made from the old one if a function for that is found.
    pub fn changed(&mut self, of: Oid, column: &str) -> String {
        (self.column, self.immutable, self.length) = (Some((of, column.to_string())), false, 0);
        for _ in 0..4 {
            let made = self.produced(of, 2);
            if let Some(made) = made.filter(|made| made.contains(column)) {
                return made;
            }
        }
        self.value(of)
    }

    /// An expression that an index, a constraint or a generated column may compute from a column of this type, with the
    /// expression's type.
    pub fn of_column(&mut self, of: Oid, column: &str) -> Option<(String, Oid)> {
        (self.column, self.immutable, self.length) = (Some((of, column.to_string())), true, 0);
        let mut found = None;
        for _ in 0..8 {
            let consumers = self.catalog.consumers.get(&of).map_or(&[][..], Vec::as_slice);
            if consumers.is_empty() || self.random.chance(20) {
                // Every type can be cast to text.
                found = Some((format!("({column}::text)"), self.catalog.named("text")));
                break;
            }
            let (producer, result) = &consumers[self.random.index(consumers.len())];
            if !immutable(producer) {
                continue;
            }
            let made = self.of_producer(producer, *result, 1);
            if let Some(made) = made.filter(|made| made.contains(column)) {
                found = Some((format!("({made})"), *result));
                break;
            }
        }
        (self.column, self.immutable) = (None, false);
        found
    }

    fn expression(&mut self, of: Oid, depth: u32) -> String {
        if let Some((_, column)) = self.column.as_ref().filter(|(kind, _)| *kind == of) {
            let column = column.clone();
            if self.random.chance(60) {
                return column;
            }
        }
        let leaf = depth == 0 || self.length > LENGTH_MAX || self.random.chance(12);
        let made =
            if leaf { self.leaf(of, depth) } else { self.produced(of, depth).unwrap_or_else(|| self.leaf(of, depth)) };
        self.length += made.len();
        made
    }

    fn produced(&mut self, of: Oid, depth: u32) -> Option<String> {
        let kind = self.catalog.by_oid(of)?.clone();
        for _ in 0..5 {
            let made = match self.random.draw(100) {
                0..=51 => {
                    let producers = self.catalog.producers.get(&of).map_or(&[][..], Vec::as_slice);
                    match producers.is_empty() {
                        true => None,
                        false => {
                            let producer = &producers[self.random.index(producers.len())];
                            self.of_producer(producer, of, depth)
                        }
                    }
                }
                52..=64 => self.polymorphic(&kind, depth),
                65..=74 => self.constructed(&kind, depth),
                75..=80 => self.syntax(&kind, depth),
                81..=84 => Some(self.through_text(&kind, depth)),
                85..=92 => self.extreme(&kind),
                93..=95 => self.iterated(&kind),
                _ => self.large(&kind),
            };
            if made.is_some() {
                return made;
            }
        }
        None
    }

    fn of_producer(&mut self, producer: &Producer, of: Oid, depth: u32) -> Option<String> {
        if self.immutable && !immutable(producer) {
            return None;
        }
        Some(match producer {
            Producer::Function(function) => self.call(function, None, depth)?,
            Producer::Operator { name, left, right, .. } => {
                let right = if *right == 0 { String::new() } else { self.expression(*right, depth - 1) };
                let left = if *left == 0 { String::new() } else { self.expression(*left, depth - 1) };
                format!("({left} {name} {right})")
            }
            Producer::Cast { from, .. } => {
                let from = self.expression(*from, depth - 1);
                format!("({from})::{}", self.catalog.by_oid(of)?.name)
            }
            Producer::Column { relation, column } => {
                let skipped = self.random.draw(20);
                format!("(select {column} from {relation} where {column} is not null offset {skipped} limit 1)")
            }
        })
    }

    /// A call of the function; `bound` says what its polymorphic types stand for, if its result determines that.
    fn call(&mut self, function: &Function, bound: Option<&Bound>, depth: u32) -> Option<String> {
        let below = depth.saturating_sub(1);
        let sized = SIZED.iter().any(|name| function.name.ends_with(&format!(".{name}")));
        let polymorphic = function.arguments.iter().any(|a| pseudo::POLYMORPHIC.contains(a));
        let own = if polymorphic && bound.is_none() { Some(self.any_bound(&function.arguments)?) } else { None };
        let bound = bound.or(own.as_ref());
        if function.aggregate {
            return self.aggregate(function, bound, below);
        }
        let mut arguments = Vec::new();
        for (position, argument) in function.arguments.iter().enumerate() {
            let last = position + 1 == function.arguments.len();
            let variadic = function.variadic && last;
            if variadic && *argument == pseudo::ANY {
                for _ in 0..1 + self.random.draw(3) {
                    let any = self.any_type();
                    arguments.push(self.expression(any, below));
                }
                continue;
            }
            let argument = self.argument(*argument, bound, sized, below)?;
            arguments.push(if variadic { format!("variadic {argument}") } else { argument });
        }
        let call = format!("{}({})", function.name, arguments.join(", "));
        Some(if function.set { format!("(select {call} limit 1)") } else { call })
    }

    fn argument(&mut self, argument: Oid, bound: Option<&Bound>, sized: bool, depth: u32) -> Option<String> {
        let int4 = self.catalog.named("integer");
        if argument == pseudo::CSTRING {
            let text = ["a", "1", "{1,2}", "(1,2)", ""][self.random.index(5)];
            return Some(format!("'{text}'::cstring"));
        }
        if argument == pseudo::RECORD {
            let (one, two) = (self.any_type(), self.any_type());
            return Some(format!("row({}, {})", self.expression(one, depth), self.expression(two, depth)));
        }
        if argument == pseudo::ANY {
            let any = self.any_type();
            return Some(self.expression(any, depth));
        }
        if sized && argument == int4 {
            return Some(self.random.draw(5_000).to_string());
        }
        if sized && self.catalog.by_oid(argument).is_some_and(|t| t.kind == Kind::Array && t.of == int4) {
            return Some(format!("array[{}]", self.random.draw(400)));
        }
        let of = if pseudo::POLYMORPHIC.contains(&argument) { bound?.stands_for(argument)? } else { argument };
        Some(self.expression(of, depth))
    }

    /// A call of an aggregate over a few different values, or over many rows of one expression.
    fn aggregate(&mut self, function: &Function, bound: Option<&Bound>, depth: u32) -> Option<String> {
        let many = self.random.chance(25);
        let (mut names, mut row) = (Vec::new(), Vec::new());
        let mut rows = Vec::new();
        for line in 0..if many { 1 } else { 1 + self.random.draw(3) } {
            row.clear();
            for (position, argument) in function.arguments.iter().enumerate() {
                row.push(self.argument(*argument, bound, false, depth)?);
                if line == 0 {
                    names.push(format!("c{position}"));
                }
            }
            rows.push(row.join(", "));
        }
        if names.is_empty() {
            return Some(format!("(select {}(*) from generate_series(1, 3))", function.name));
        }
        let source = match many {
            true => format!("select {} from generate_series(1, {})", rows[0], [10, 100, 1000][self.random.index(3)]),
            false => rows.iter().map(|row| format!("select {row}")).collect::<Vec<_>>().join(" union all "),
        };
        let names = names.join(", ");
        Some(format!("(select {}({names}) from ({source}) as s({names}))", function.name))
    }

    /// A call of a polymorphic function that returns this type.
    fn polymorphic(&mut self, kind: &Type, depth: u32) -> Option<String> {
        let functions = &self.catalog.polymorphic;
        for _ in 0..10 {
            let function = &functions[self.random.index(functions.len())];
            if self.immutable && !function.immutable {
                continue;
            }
            let Some(bound) = Bound::from_result(self.catalog, function.result, kind) else { continue };
            if let Some(made) = self.call(function, Some(&bound), depth) {
                return Some(made);
            }
        }
        None
    }

    /// Draws what the polymorphic arguments of a function stand for, if its result does not determine that.
    fn any_bound(&mut self, arguments: &[Oid]) -> Option<Bound> {
        if let Some((of, _)) = self.column.clone() {
            // Use the type of the column if it fits, so that the expression can use the column.
            let kind = self.catalog.by_oid(of)?;
            for argument in arguments {
                if let Some(bound) = Bound::from_result(self.catalog, *argument, kind) {
                    return Some(bound);
                }
            }
        }
        let wanted = |names: &[Oid]| arguments.iter().any(|a| names.contains(a));
        let kinds: Vec<&Type> = if wanted(&[pseudo::ANYENUM]) {
            self.catalog.types.values().filter(|t| t.kind == Kind::Enum).collect()
        } else if wanted(&[pseudo::ANYMULTIRANGE, pseudo::ANYCOMPATIBLEMULTIRANGE]) {
            self.catalog.types.values().filter(|t| t.kind == Kind::Multirange).collect()
        } else if wanted(&[pseudo::ANYRANGE, pseudo::ANYCOMPATIBLERANGE]) {
            self.catalog.types.values().filter(|t| t.kind == Kind::Range).collect()
        } else {
            let any = self.any_type();
            return Some(Bound::of_element(self.catalog, any));
        };
        if kinds.is_empty() {
            return None;
        }
        let kind = kinds[self.random.index(kinds.len())];
        match kind.kind {
            Kind::Enum => Some(Bound::of_element(self.catalog, kind.oid)),
            Kind::Range => Bound::from_result(self.catalog, pseudo::ANYRANGE, kind),
            _ => Bound::from_result(self.catalog, pseudo::ANYMULTIRANGE, kind),
        }
    }

    fn any_type(&mut self) -> Oid {
        const USUAL: [&str; 14] = [
            "integer",
            "text",
            "numeric",
            "boolean",
            "double precision",
            "timestamp with time zone",
            "date",
            "bytea",
            "interval",
            "json",
            "uuid",
            "integer[]",
            "text[]",
            "character varying",
        ];
        if self.random.chance(70) {
            return self.catalog.named(USUAL[self.random.index(USUAL.len())]);
        }
        let skipped = self.random.index(self.catalog.types.len());
        self.catalog.types.values().nth(skipped).map_or(25, |t| t.oid)
    }

    fn leaf(&mut self, of: Oid, depth: u32) -> String {
        let Some(kind) = self.catalog.by_oid(of).cloned() else { return "null".to_string() };
        let name = &kind.name;
        if self.random.chance(25) {
            if let Some(extreme) = self.extreme(&kind) {
                return extreme;
            }
        }
        if self.random.chance(3) {
            return format!("null::{name}");
        }
        match kind.kind {
            Kind::Base if !kind.inputs.is_empty() => {
                let input = &kind.inputs[self.random.index(kind.inputs.len())];
                format!("{}::{name}", quoted(input))
            }
            Kind::Base if depth == 0 => {
                // No input is known for this type: use any function that returns it, with leaves as arguments.
                let producers = self.catalog.producers.get(&of).map_or(&[][..], Vec::as_slice);
                if producers.is_empty() || self.length > 2 * LENGTH_MAX {
                    return format!("null::{name}");
                }
                let producer = &producers[self.random.index(producers.len())];
                self.length += 200;
                self.of_producer(producer, of, 1).unwrap_or_else(|| format!("null::{name}"))
            }
            Kind::Base => format!("null::{name}"),
            _ => self.constructed(&kind, depth.min(1)).unwrap_or_else(|| format!("null::{name}")),
        }
    }

    /// A value made by the constructor for this kind of type.
    fn constructed(&mut self, kind: &Type, depth: u32) -> Option<String> {
        let (name, below) = (&kind.name, depth.saturating_sub(1));
        if self.length > 3 * LENGTH_MAX {
            return Some(format!("null::{name}"));
        }
        self.length += 20;
        Some(match kind.kind {
            Kind::Base => return None,
            Kind::Array => {
                let members: Vec<String> = (0..self.random.draw(4)).map(|_| self.expression(kind.of, below)).collect();
                format!("array[{}]::{name}", members.join(", "))
            }
            Kind::Composite => {
                let fields: Vec<String> = kind.fields.iter().map(|(_, of)| self.leaf(*of, 0)).collect();
                format!("row({})::{name}", fields.join(", "))
            }
            Kind::Domain => format!("({})::{name}", self.expression(kind.of, below)),
            Kind::Enum => format!("{}::{name}", quoted(&kind.labels[self.random.index(kind.labels.len())])),
            Kind::Range => {
                let (one, two) = (self.expression(kind.of, below), self.expression(kind.of, below));
                let bounds = ["[)", "[]", "(]", "()"][self.random.index(4)];
                // The lower bound must come first.
                match self.random.chance(70) {
                    true => format!("{name}(least({one}, {two}), greatest({two}, {one}), '{bounds}')"),
                    false => format!("{name}({one}, null, '{bounds}')"),
                }
            }
            Kind::Multirange => {
                let ranges: Vec<String> = (0..self.random.draw(4)).map(|_| self.expression(kind.of, below)).collect();
                format!("{name}({})", ranges.join(", "))
            }
        })
    }

    /// An expression with syntax of its own, which the catalogs do not list as a function.
    fn syntax(&mut self, kind: &Type, depth: u32) -> Option<String> {
        let (name, below) = (kind.name.clone(), depth.saturating_sub(1));
        if name == "xml" {
            let any = self.any_type();
            let (of, any) = (self.expression(kind.oid, below), self.expression(any, below));
            return Some(match self.random.draw(9) {
                0 => format!("xmlelement(name a, {any})"),
                1 => format!("xmlelement(name \"x y\", xmlattributes({any} as b), {of})"),
                2 => format!("xmlforest({any} as f, {of} as g)"),
                3 => format!("xmlpi(name php, {any}::text)"),
                4 => format!("xmlroot({of}, version '1.0', standalone yes)"),
                5 => format!("xmlroot({of}, version no value)"),
                6 => format!("xmlparse(content {any}::text)"),
                7 => format!("xmlconcat({of}, {of})"),
                _ => "xmlparse(document '<?xml version=\"1.0\" encoding=\"latin1\"?><a/>')".to_string(),
            });
        }
        let (one, two) = (self.expression(kind.oid, below), self.expression(kind.oid, below));
        Some(match self.random.draw(6) {
            0 => format!("coalesce({one}, {two})"),
            1 => format!("case when random() < 0.5 then {one} else {two} end"),
            2 => format!("greatest({one}, {two})"),
            3 => format!("least({one}, {two})"),
            4 => format!("nullif({one}, {two})"),
            _ if kind.kind == Kind::Array => {
                let member = self.expression(kind.of, below);
                format!(
                    "array(select {member} from generate_series(1, {}))::{name}",
                    [3, 40, 900][self.random.index(3)]
                )
            }
            _ => format!("(array[{one}, {two}])[1 + floor(random() * 2)]"),
        })
    }

    /// The text of a value of any type, cast to this type, which often fails.
    fn through_text(&mut self, kind: &Type, depth: u32) -> String {
        let other = if self.random.chance(50) { kind.oid } else { self.any_type() };
        let other = self.expression(other, depth.saturating_sub(1));
        format!("(({other})::text)::{}", kind.name)
    }

    fn extreme(&mut self, kind: &Type) -> Option<String> {
        let all = extremes(&kind.name);
        match all.is_empty() {
            true => None,
            false => Some(all[self.random.index(all.len())].to_string()),
        }
    }

    /// A function or an operator that is applied to its own result many times.
    fn iterated(&mut self, kind: &Type) -> Option<String> {
        if self.immutable {
            return None;
        }
        let (name, oid) = (&kind.name, kind.oid);
        let step = match &**name {
            "json" if self.random.chance(50) => "json_build_array(itself)".to_string(),
            "jsonb" if self.random.chance(30) => "jsonb_build_object('a', itself)".to_string(),
            "xml" if self.random.chance(50) => "xmlelement(name a, itself)".to_string(),
            _ => {
                let consumers = self.catalog.consumers.get(&oid).map_or(&[][..], Vec::as_slice);
                let same: Vec<&Producer> =
                    consumers.iter().filter(|(p, to)| *to == oid && !aggregate(p)).map(|(p, _)| p).collect();
                if same.is_empty() {
                    return None;
                }
                let producer = same[self.random.index(same.len())];
                let column = self.column.replace((oid, "itself".to_string()));
                let made = self.of_producer(producer, oid, 1);
                self.column = column;
                made?
            }
        };
        let times = match &*step {
            "json_build_array(itself)" => [100, 7_000, 20_000][self.random.index(3)],
            "xmlelement(name a, itself)" => [100, 300, 1000][self.random.index(3)],
            // The value may double its size at each step.
            _ if step.matches("itself").count() > 1 => 9,
            _ => [3, 12, 100][self.random.index(3)],
        };
        let start = self.leaf(oid, 0);
        Some(format!(
            "(with recursive r(n, itself) as (select 0, {start} union all select n + 1, {step} from r where n < {times}) \
             select itself from r where n = {times})"
        ))
    }

    /// A large value, often more than a quarter of a page, so that it is stored out of line; compressible or not.
    fn large(&mut self, kind: &Type) -> Option<String> {
        if self.immutable {
            return None;
        }
        let size = [20, 60, 70, 90, 200, 900, 4_000][self.random.index(7)];
        let digests = format!(
            "(select string_agg(md5((g + {})::text), '') from generate_series(1, {size}) g)",
            self.random.draw(99)
        );
        let same = format!("repeat('{}', {})", ["x", "ab ", "0"][self.random.index(3)], size * 40);
        let text = if self.random.chance(60) { digests } else { same };
        Some(match &*kind.name {
            "text" => text,
            "character varying" | "bpchar" | "public.citext" => format!("{text}::{}", kind.name),
            "bytea" => match self.random.chance(50) {
                true => format!("convert_to({text}, 'UTF8')"),
                false => format!("decode(repeat(md5('{size}'), {size}), 'hex')"),
            },
            "json" => format!("json_build_object('a', {text})"),
            "jsonb" => format!("jsonb_build_object('a', {text})"),
            "xml" => format!("xmlelement(name a, {text})"),
            "numeric" => format!("(repeat('{}', {}))::numeric", ["9", "1234567", "1000"][self.random.index(3)], size),
            "bit varying" => {
                format!("(repeat('{}', {}))::varbit", ["10", "0", "1101001"][self.random.index(3)], size * 10)
            }
            "tsvector" => format!(
                "to_tsvector('simple', (select string_agg(md5(g::text), ' ') from generate_series(1, {size}) g))"
            ),
            "path" => format!(
                "(select path(string_agg(format('(%s,%s)', g, g * 1.5), ','))  from generate_series(1, {size}) g)"
            ),
            "polygon" => format!("polygon({size}, circle(point(1, 2), {size}))"),
            _ if kind.kind == Kind::Array => {
                let member = self.leaf(kind.of, 0);
                format!("(select array_agg({member}) from generate_series(1, {size}))::{}", kind.name)
            }
            _ if kind.kind == Kind::Composite => {
                let fields: Vec<String> = kind
                    .fields
                    .iter()
                    .map(|(_, of)| {
                        let field = self.catalog.by_oid(*of).cloned();
                        field.and_then(|f| self.large_field(&f)).unwrap_or_else(|| self.leaf(*of, 0))
                    })
                    .collect();
                format!("row({})::{}", fields.join(", "), kind.name)
            }
            _ if kind.kind == Kind::Domain => {
                let base = self.catalog.by_oid(kind.of)?.clone();
                format!("({})::{}", self.large(&base)?, kind.name)
            }
            _ => return None,
        })
    }

    fn large_field(&mut self, field: &Type) -> Option<String> {
        match field.kind {
            Kind::Base => self.large(field),
            _ => None,
        }
    }
}

fn immutable(producer: &Producer) -> bool {
    match producer {
        Producer::Function(f) => f.immutable && !f.aggregate && !f.set,
        Producer::Operator { immutable, .. } | Producer::Cast { immutable, .. } => *immutable,
        Producer::Column { .. } => false,
    }
}

fn aggregate(producer: &Producer) -> bool {
    matches!(producer, Producer::Function(f) if f.aggregate || f.set)
}

/// What the polymorphic types stand for in one call.
struct Bound {
    element: Oid,
    array: Option<Oid>,
    range: Option<Oid>,
    multirange: Option<Oid>,
}

impl Bound {
    fn of_element(catalog: &Catalog, element: Oid) -> Bound {
        let array = catalog.by_oid(element).map(|t| t.array).filter(|array| catalog.by_oid(*array).is_some());
        let range = catalog.types.values().find(|t| t.kind == Kind::Range && t.of == element).map(|t| t.oid);
        let multirange =
            catalog.types.values().find(|t| t.kind == Kind::Multirange && Some(t.of) == range).map(|t| t.oid);
        Bound { element, array, range, multirange }
    }

    /// What the polymorphic types must stand for so that `result` is `kind`.
    fn from_result(catalog: &Catalog, result: Oid, kind: &Type) -> Option<Bound> {
        let element = match (result, kind.kind) {
            (pseudo::ANYELEMENT | pseudo::ANYCOMPATIBLE, _) => kind.oid,
            (pseudo::ANYNONARRAY | pseudo::ANYCOMPATIBLENONARRAY, of) if of != Kind::Array => kind.oid,
            (pseudo::ANYENUM, Kind::Enum) => kind.oid,
            (pseudo::ANYARRAY | pseudo::ANYCOMPATIBLEARRAY, Kind::Array) => kind.of,
            (pseudo::ANYRANGE | pseudo::ANYCOMPATIBLERANGE, Kind::Range) => kind.of,
            (pseudo::ANYMULTIRANGE | pseudo::ANYCOMPATIBLEMULTIRANGE, Kind::Multirange) => catalog.by_oid(kind.of)?.of,
            _ => return None,
        };
        let mut bound = Bound::of_element(catalog, element);
        match kind.kind {
            Kind::Range if element != kind.oid => {
                bound.range = Some(kind.oid);
                bound.multirange =
                    catalog.types.values().find(|t| t.kind == Kind::Multirange && t.of == kind.oid).map(|t| t.oid);
            }
            Kind::Multirange if element != kind.oid => {
                bound.range = Some(kind.of);
                bound.multirange = Some(kind.oid);
            }
            _ => {}
        }
        Some(bound)
    }

    fn stands_for(&self, argument: Oid) -> Option<Oid> {
        match argument {
            pseudo::ANYARRAY | pseudo::ANYCOMPATIBLEARRAY => self.array,
            pseudo::ANYRANGE | pseudo::ANYCOMPATIBLERANGE => self.range,
            pseudo::ANYMULTIRANGE | pseudo::ANYCOMPATIBLEMULTIRANGE => self.multirange,
            _ => Some(self.element),
        }
    }
}

/// Extreme values of a type, including some that no input accepts but functions can make.
fn extremes(name: &str) -> &'static [&'static str] {
    match name {
        "smallint" => &["(-32768)::int2", "32767::int2", "0::int2"],
        "integer" => &["(-2147483648)::int4", "2147483647", "0", "1", "-1", "7", "100"],
        "bigint" => &["(-9223372036854775808)::int8", "9223372036854775807", "0::int8", "1::int8", "40::int8"],
        "real" => &["'NaN'::float4", "(-'0'::float4)", "'Infinity'::float4", "1e-45::float4", "3.4028235e38::float4"],
        "double precision" => &[
            "'NaN'::float8",
            "(-'0'::float8)",
            "'-Infinity'::float8",
            "5e-324::float8",
            "1.7976931348623157e308::float8",
            "-1::float8",
            "0.1::float8 + 0.2::float8",
            "pi()",
        ],
        "numeric" => &[
            "'NaN'::numeric",
            "'-Infinity'::numeric",
            "10::numeric ^ 500",
            "1::numeric / 3",
            "1e-16383::numeric",
            "0.000::numeric",
            "1e131071::numeric",
            "2::numeric ^ 0.5",
            "round(1.5e10::numeric, -5)",
            "trim_scale(1.0000)",
            "(-0.0)::numeric",
        ],
        "text" => &[
            "''",
            "chr(1)",
            "chr(1114111)",
            "E'\\x01\\n\\r\\t'",
            "chr(233) || chr(26085)",
            "repeat('a', 2700)",
            "repeat('a', 100000)",
            "quote_literal(E'\\\\')",
            "U&'e\\0301'",
            "upper('ß')",
            "translate('abc', 'b', chr(127))",
        ],
        "\"char\"" => &["0::\"char\"", "(-1)::\"char\"", "127::\"char\"", "''::\"char\"", "(-128)::\"char\""],
        "name" => &["repeat('n', 63)::name", "''::name", "'A b'::name"],
        "bpchar" => &["repeat(' ', 50)::bpchar", "'a   '::bpchar"],
        "bytea" => &["''::bytea", "'\\x00'::bytea", "int8send(-1)", "sha512('a')", "decode(repeat('00', 3000), 'hex')"],
        "date" => &[
            "'infinity'::date",
            "'-infinity'::date",
            "make_date(-4713, 11, 24)",
            "make_date(5874897, 12, 31)",
            "'epoch'::date",
        ],
        "timestamp without time zone" => &[
            "'infinity'::timestamp",
            "make_timestamp(-4713, 11, 24, 0, 0, 0)",
            "make_timestamp(294276, 12, 31, 23, 59, 59.999999)",
        ],
        "timestamp with time zone" => &[
            "'-infinity'::timestamptz",
            "to_timestamp(-210866803200)",
            "to_timestamp(9224318015999.999)",
            "now()",
            "clock_timestamp()",
            "timezone('Europe/Amsterdam', make_timestamp(1900, 1, 1, 0, 0, 0))",
        ],
        "time without time zone" => {
            &["make_time(24, 0, 0)", "make_time(23, 59, 59.999999)", "'24:00'::time - interval '1 us'"]
        }
        "time with time zone" => &[
            "timezone(interval '20 hours', timetz '12:00+00')",
            "timezone(interval '-15:59:59', timetz '24:00+00')",
            "timezone(interval '167 hours', timetz '12:00+00')",
            "'24:00:00-15:59:59'::timetz",
        ],
        "interval" => &[
            "make_interval(years => 178000000)",
            "make_interval(months => -2147483648)",
            "make_interval(secs => 9223372036854)",
            "make_interval(days => 2147483647, secs => -1e12)",
            "justify_interval(interval '1 mon -40 days 100:00')",
            "-interval '1 us'",
        ],
        "circle" => &[
            "circle(point(0,0), -1)",
            "circle(point('NaN'::float8, 0), 'Infinity')",
            "circle(point(1, 2), 'NaN'::float8)",
        ],
        "point" => {
            &["point('NaN'::float8, 'Infinity'::float8)", "point(-0.0, 1e308)", "point(1e308, 1) * point(1e308, 2)"]
        }
        "line" => &["line(point(0,0), point(0,1))", "line(point(0,0), point(1e-300,1e-300))"],
        "lseg" => &["lseg(point(0,0), point(0,0))"],
        "box" => &["box(point('NaN'::float8,0), point(0,'-Infinity'::float8))", "box(circle(point(0,0), -2))"],
        "path" => {
            &["popen(path '((0,0),(1,1))')", "pclose(path '[(0,0),(1,1)]')", "path '((0,0))' + point(1, 'NaN'::float8)"]
        }
        "polygon" => &["polygon(2, circle(point(0,0), -1))", "polygon(12, circle(point(0,0),'Infinity'::float8))"],
        "json" => &[
            "json_build_array()",
            "to_json(chr(1))",
            "json_build_object('', null)",
            "json '{\"a\":1,\"a\":2}'",
            "row_to_json(row(1,null))",
        ],
        "jsonb" => &[
            "jsonb_build_array()",
            "to_jsonb(1e500::numeric)",
            "to_jsonb(chr(1))",
            "jsonb_build_object('', jsonb 'null')",
        ],
        "xml" => &[
            "xmlelement(name a, E'\\x01')",
            "xmlparse(document '<?xml version=\"1.0\" encoding=\"latin1\"?><a/>')",
            "xmlcomment('')",
            "xmlparse(content '')",
            "xmlparse(content 'a<b/>c')",
            "xmlparse(document '<!DOCTYPE a><a/>')",
            "xmlpi(name x, 'y')",
        ],
        "bit varying" => &["''::varbit", "repeat('1', 9)::varbit"],
        "bit" => &["bit '1'", "(-1)::bit(40)"],
        "money" => &["'-92233720368547758.08'::money", "(1::float8 * money '0.01')", "0.005::numeric::money"],
        "inet" => &["inet '255.255.255.255' - 1", "set_masklen(inet '::1', 0)", "inet '::ffff:1.2.3.4'"],
        "cidr" => &["network(inet '10.1.2.3/8')", "cidr '::/0'"],
        "oid" => &["4294967295::oid", "0::oid", "987654::oid"],
        "regclass" => &[
            "(select reltoastrelid::regclass from pg_class where reltoastrelid <> 0 order by 1 limit 1)",
            "0::regclass",
            "987654::regclass",
            "'pg_catalog.pg_class'::regclass",
            "(select max(oid)::regclass from pg_class)",
        ],
        "regproc" => &[
            "'abs'::text::name::text::regproc",
            "(select min(oid) from pg_proc where proname = 'abs')::regproc",
            "0::regproc",
            "987654::regproc",
        ],
        "regprocedure" => &["'pg_catalog.abs(int4)'::regprocedure", "0::regprocedure", "987654::regprocedure"],
        "regoper" => {
            &["(select min(oid) from pg_operator where oprname = '+')::regoper", "0::regoper", "987654::regoper"]
        }
        "regoperator" => &["'-(none,int4)'::regoperator", "0::regoperator", "987654::regoperator"],
        "regtype" => &["'int4[]'::regtype", "0::regtype", "987654::regtype", "(select max(oid)::regtype from pg_type)"],
        "regrole" => &["current_user::regrole", "0::regrole", "987654::regrole", "10::regrole"],
        "regnamespace" => {
            &["pg_my_temp_schema()::regnamespace", "0::regnamespace", "987654::regnamespace", "'public'::regnamespace"]
        }
        "regcollation" => &["'\"C\"'::regcollation", "0::regcollation", "987654::regcollation"],
        "regconfig" => &["'english'::regconfig", "0::regconfig", "987654::regconfig"],
        "regdictionary" => &["'simple'::regdictionary", "0::regdictionary", "987654::regdictionary"],
        "aclitem" => &[
            "makeaclitem(987654, 10, 'SELECT', false)",
            "makeaclitem(10, 10, 'USAGE', true)",
            "makeaclitem(0, 10, 'INSERT', false)",
            "(acldefault('r', 10))[1]",
        ],
        "oidvector" => &["(select proargtypes from pg_proc where pronargs > 3 limit 1)", "''::oidvector"],
        "int2vector" => &["(select indkey from pg_index limit 1)", "''::int2vector"],
        "pg_node_tree" => &["(select adbin from pg_attrdef limit 1)", "(select ev_action from pg_rewrite limit 1)"],
        "uuid" => &["gen_random_uuid()", "'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid"],
        "tsvector" => &[
            "to_tsvector('english', 'the fat cats')",
            "strip(to_tsvector('a b'))",
            "''::tsvector",
            "setweight(tsvector 'a:16383', 'A')",
        ],
        "tsquery" => &[
            "phraseto_tsquery('english', 'the fat cats')",
            "tsquery_phrase(tsquery 'a', tsquery 'b', 16384)",
            "!!tsquery 'a'",
            "''::tsquery",
        ],
        "pg_lsn" => &["pg_current_wal_lsn()", "'0/0'::pg_lsn", "'FFFFFFFF/FFFFFFFF'::pg_lsn"],
        "xid" => &["'0'::xid", "'4294967295'::xid"],
        "xid8" => &["pg_current_xact_id()", "'18446744073709551615'::xid8"],
        "tid" => &["'(4294967295,65535)'::tid", "'(0,0)'::tid"],
        "pg_snapshot" => &["pg_current_snapshot()", "'5:5:'::pg_snapshot"],
        "txid_snapshot" => &["txid_current_snapshot()"],
        "refcursor" => &["''::refcursor"],
        "int4range" => &["'empty'::int4range", "int4range(null, null)", "int4range(-2147483648, 2147483647)"],
        "daterange" => &["daterange('-infinity', 'infinity', '[]')", "daterange(null, 'infinity')"],
        "tstzrange" => &["tstzrange('-infinity', 'infinity', '[]')", "tstzrange(now(), null)"],
        "numrange" => &["numrange('NaN', 'NaN', '[]')", "numrange(1.0, 1.00, '[]')"],
        "int4[]" | "integer[]" => &[
            "'[-5:-4]={1,2}'::int4[]",
            "array_fill(7, array[2,0,3])",
            "array_fill(1, array[1,2,3,1,1,1])",
            "'{}'::int4[]",
        ],
        "text[]" => &[
            "array_fill('x'::text, array[3,3], array[-2147483648,5])",
            "string_to_array('a,b,', ',')",
            "array[null, '', 'null']::text[]",
        ],
        _ => &[],
    }
}
