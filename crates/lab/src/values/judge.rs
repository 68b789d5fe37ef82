//! Are all regions equal?  Compares rows: as text, by size and compression, and by their bytes on the page where these
//! must be the same in every server.  Then compares what indexes on expressions contain.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio_postgres::Client;

use super::schema::Table;
use crate::trial::sql::{quoted, rows, shortened};

/// VACUUM keeps what an old snapshot may still see, but only for so long.
const OLD_SNAPSHOTS: Duration = Duration::from_millis(2_500);
const POLL: Duration = Duration::from_millis(20);

/// A row that is not the same in all regions.
#[derive(Debug)]
pub struct Difference {
    pub id: Option<i64>,
    pub message: String,
}

/// Compares a table's rows in all regions, ordered by id; `bytes`: also by their bytes.
pub async fn compare(clients: &[Client], table: &Table, bytes: bool) -> Result<Option<Difference>> {
    let name = &table.name;
    // The attributes as they are on the page, with out-of-line values fetched: of this row alone, since those of a dead
    // row on the page may be gone in part.  The function accepts only a heap as the table whose columns it uses, so it
    // gets a twin of the table.
    let twin = name.replace("made.", "pg_temp.");
    let raw = match bytes {
        true => format!(
            "(select concat_ws(' ', md5(attrs[2]::text), md5(attrs[3]::text))
              from public.heap_page_items(public.get_raw_page({}, split_part(trim('(' from t.ctid::text), ',', 1)::int)) item,
                 lateral (select public.tuple_data_split({}::regclass, t_data, t_infomask, t_infomask2, t_bits, true) as attrs
                          offset 0) as split
              where lp = trim(')' from split_part(t.ctid::text, ',', 2))::int)",
            quoted(name),
            quoted(&twin)
        ),
        false => "''".to_string(),
    };
    let generated = if table.generated { "made.shown(g)" } else { "''" };
    // A value that contains OIDs has other OIDs in another region, so its compressed form may be some bytes longer or
    // shorter there.
    let size = |column: &str| match bytes {
        true => format!("pg_column_size({column})"),
        false => format!("case when pg_column_compression({column}) is null then pg_column_size({column}) end"),
    };
    let (size_v, size_w) = (size("v"), size("w"));
    let query = format!(
        "select id, other, note, {size_v}, {size_w}, pg_column_compression(v), pg_column_compression(w),
                {raw} as raw, md5(shown_v), md5(shown_w), left(shown_v, 200), left(shown_w, 200), {generated}
         from {name} t, lateral (select made.shown(v) as shown_v, made.shown(w) as shown_w offset 0) as shown order by 1, 2, 3, 4, 8, 9, 10"
    );
    let mut all = Vec::new();
    for client in clients {
        if bytes {
            rows(client, &format!("create temp table {} (like {name}) using heap", twin.replace("pg_temp.", "")))
                .await?;
        }
        all.push(rows(client, &query).await?);
        if bytes {
            rows(client, &format!("drop table {twin}")).await?;
        }
    }
    for (region, other) in all.iter().enumerate().skip(1) {
        let longer = all[0].len().max(other.len());
        for line in 0..longer {
            let (here, there) = (all[0].get(line), other.get(line));
            if here != there {
                let id = here.or(there).and_then(|row| row[0].parse().ok());
                let shown = |row: Option<&Vec<String>>| {
                    row.map_or("no row".to_string(), |row| shortened(&row.join(" | "), 600))
                };
                let message = format!("region 0 has: {}; region {region} has: {}", shown(here), shown(there));
                return Ok(Some(Difference { id, message }));
            }
        }
    }
    Ok(None)
}

/// Compares what B-tree indexes on expressions contain, after a VACUUM that leaves only what is visible.
pub async fn compare_indexes(clients: &[Client], table: &Table) -> Result<Option<Difference>> {
    let began = Instant::now();
    loop {
        let found = indexes_differ(clients, table).await?;
        if found.is_none() || began.elapsed() > OLD_SNAPSHOTS {
            return Ok(found);
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn indexes_differ(clients: &[Client], table: &Table) -> Result<Option<Difference>> {
    let indexes = format!(
        "select i.indexrelid::regclass, pg_get_indexdef(i.indexrelid),
            (select attlen from pg_attribute where attrelid = i.indexrelid and attnum = 1) from pg_index i join pg_class c on c.oid = i.indexrelid
            join pg_am a on a.oid = c.relam
         where i.indrelid = {}::regclass and i.indexprs is not null and a.amname = 'btree' order by 2, 1",
        quoted(&table.name)
    );
    let mut all: Vec<Vec<(String, String)>> = Vec::new();
    for client in clients {
        let of_table = rows(client, &indexes).await?;
        if !of_table.is_empty() {
            rows(client, &format!("vacuum (index_cleanup on) {}", table.name)).await?;
        }
        let mut held = Vec::new();
        for index in of_table {
            // Where the row was written, the index may have compressed the value itself; elsewhere it takes the value
            // as it is stored, which may be compressed in another way.  So compressed values are not compared.
            let data = match index[2].as_str() {
                "-1" => {
                    "case when i.data = '' then '' when get_byte(decode(left(i.data, 2), 'hex'), 0) & 3 = 2 then 'compressed' else i.data end"
                }
                _ => "i.data",
            };
            // A page's first item is its upper bound, unless it is the rightmost.
            let entries = format!(
                "select string_agg(data || '*' || count, ' ' order by data) from (
                    select {data} as data, sum(coalesce(cardinality(i.tids), 1)) as count
                    from generate_series(1, pg_relation_size({name}) / current_setting('block_size')::int - 1) as p,
                        lateral (select * from public.bt_page_stats({name}, p) s where s.type in ('l', 'r') and s.btpo_level = 0) s,
                        lateral (select * from public.bt_page_items({name}, p) i
                                 where i.itemoffset > case when s.btpo_next = 0 then 0 else 1 end) i
                    group by 1) as e",
                name = quoted(&index[0])
            );
            let entries = rows(client, &entries).await?;
            held.push((index[1].clone(), entries.concat().concat()));
        }
        all.push(held);
    }
    Ok(contents_differ(&all).map(|message| Difference { id: None, message }))
}

/// Compares the indexes of all regions, each with its definition and what it contains.
fn contents_differ(all: &[Vec<(String, String)>]) -> Option<String> {
    let shown = |index: Option<&(String, String)>| {
        index.map_or("no index".to_string(), |(definition, held)| format!("{definition}: {}", shortened(held, 300)))
    };
    let (first, others) = all.split_first()?;
    for (region, other) in others.iter().enumerate() {
        for at in 0..first.len().max(other.len()) {
            let (here, there) = (first.get(at), other.get(at));
            if here != there {
                let region = region + 1;
                return Some(format!("region 0 has {}; region {region} has {}", shown(here), shown(there)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_another_region_lacks_is_a_difference() {
        let index = |definition: &str, held: &str| (definition.to_string(), held.to_string());
        let (one, two) = (index("on (f(v))", "1*1"), index("on (g(v))", "2*1"));
        let both = vec![one.clone(), two.clone()];
        assert_eq!(contents_differ(&[both.clone(), both.clone()]), None);
        for other in
            [vec![], vec![one.clone()], vec![one, index("on (h(v))", "2*1")], vec![index("on (f(v))", "3*1"), two]]
        {
            let (way, back) = ([both.clone(), other.clone()], [other, both.clone()]);
            assert!(contents_differ(&way).is_some() && contents_differ(&back).is_some(), "{way:?}");
        }
    }
}
