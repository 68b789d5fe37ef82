//! A PostgreSQL that exists is adopted, two regions join it, work goes on in all of them, and one becomes a plain
//! PostgreSQL again.  The commands are those of `docs/adopt.md`, run as they stand there; only folders and addresses
//! are this test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::Context;
use onetrip_lab::{ports, postgres_bin, postmaster};
use tokio::process::{Child, Command};

use crate::dump::SHOP;
use crate::lab::{binary, number, text, turn, until, Session, SOON};

const PAGE: &str = include_str!("../../../../docs/adopt.md");
/// Every step at which the command can be killed, in order.
const STEPS: [&str; 6] = ["planned", "moved", "settings", "converting", "converted", "renamed"];
const BACK: [&str; 3] = ["undo-moved", "undo-plain", "undo-back"];
const RELEASE: [&str; 4] = ["released", "release-moved", "release-plain", "release-settings"];
const LOCAL: &str = "shop.scratch";

/// In addition to the shop of the test of dumps, and to pgbench's tables.
const MORE: &str = "
    create role keeper; create role clerk in role keeper; create role app login;
    alter default privileges revoke execute on functions from public;
    alter default privileges in schema shop grant select on tables to clerk;
    create schema app authorization app;
    grant select (id, name) on shop.customer to clerk with grant option;
    create table app.doc (id uuid primary key default gen_random_uuid(), body jsonb not null, long text);
    alter table app.doc owner to app;
    insert into app.doc (body, long) select jsonb_build_object('n', g), repeat(md5(g::text), 300) from generate_series(1, 200) g;
    create index on app.doc using gin (body);
    create table app.slot (room int, during tsrange, exclude using gist (during with &&));
    insert into app.slot values (1, '[2026-01-01, 2026-01-02)');
    create sequence app.down increment -3 maxvalue 50;
    create sequence app.round maxvalue 100 cycle;
    create sequence app.few maxvalue 3 cache 2;
    create table app.tight (id smallserial primary key);
    insert into app.tight select from generate_series(1, 100);
    select nextval('app.down'), nextval('app.round'), nextval('app.round');
    alter table app.doc enable row level security;
    create policy own on app.doc using (true);
    create table app.marked (id int primary key, at text default pg_current_xact_id()::text,
        of int default 'app.doc'::regclass::oid::int);
    create index on app.marked (id) where txid_visible_in_snapshot(7, '10:20:10,14');
    create view app.seen as select xmin from app.doc;
    create function app.changed(xid) returns boolean language sql as
        'select exists (select from app.doc where xmin = $1)';
    create function app.now_is() returns xid8 language sql begin atomic select pg_current_xact_id(); end;
    select lo_from_bytea(7001, 'adopted');
    alter role app set work_mem = '7MB'";

/// What is in a user's schema and fits better than PostgreSQL's own.  If a superuser calls it, the user becomes one,
/// and then the roles are not as before.
const TRAPS: &str = "
    grant create on schema public to app;
    set role app;
    create function public.spring() returns void language plpgsql as $$ begin
        if (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then
            alter role app superuser;
        end if;
    end $$;
    create function public.equals(oid, regclass) returns boolean language plpgsql as $$ begin
        perform public.spring();
        return $1 operator(pg_catalog.=) $2::oid;
    end $$;
    create operator public.= (leftarg = oid, rightarg = regclass, function = public.equals);
    create function public.quote_ident(name) returns text language plpgsql as $$ begin
        perform public.spring();
        return pg_catalog.quote_ident($1::text);
    end $$;
    create function public.pg_sequence_last_value(oid) returns bigint language plpgsql as $$ begin
        perform public.spring();
        return pg_catalog.pg_sequence_last_value($1::regclass);
    end $$;
    reset role";

struct Place {
    folder: PathBuf,
    /// Of the addresses 10.0.1.10:7100, 10.0.2.10:7100 and 10.0.3.10:7100.
    peers: Vec<u16>,
    port: u16,
    environment: Vec<(String, String)>,
    nodes: BTreeMap<String, Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nodes stop when their standard input closes.
        for (folder, mut node) in std::mem::take(&mut self.nodes) {
            drop(node.stdin.take());
            wait_gone(&mut node);
            if std::thread::panicking() {
                println!("--- {folder}\n{}", fs::read_to_string(self.folder.join("bin/log")).unwrap_or_default());
            }
        }
        for data in [self.path("/srv/postgres"), self.path("/srv/onetrip")] {
            for folder in fs::read_dir(data).into_iter().flatten().flatten() {
                for data in [folder.path(), folder.path().join("postgres")] {
                    let _ = postmaster::stop_now(&data, SOON);
                }
            }
        }
        if std::env::var_os("ONETRIP_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

fn wait_gone(node: &mut Child) {
    let end = std::time::Instant::now() + SOON * 2;
    while matches!(node.try_wait(), Ok(None)) {
        if std::time::Instant::now() > end {
            let _ = node.start_kill();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Place {
    fn new(name: &str) -> Place {
        let folder = PathBuf::from(format!("/var/tmp/onetrip-{name}-{}", std::process::id()));
        let bin = folder.join("bin");
        for made in [folder.clone(), bin.clone(), folder.join("postgres"), folder.join("onetrip")] {
            fs::create_dir(&made).unwrap();
            fs::set_permissions(&made, fs::Permissions::from_mode(0o755)).unwrap();
            if let Some(user) = user() {
                chown(&made, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
            }
        }
        std::os::unix::fs::symlink(binary(), bin.join("onetrip")).unwrap();
        let mut ports = ports::free_ports(4).unwrap();
        let path = format!("{}:{}:/usr/bin:/bin", bin.display(), postgres_bin().display());
        let environment = [("PATH", path), ("ONETRIP_POSTGRES_BIN", postgres_bin().display().to_string())];
        Place {
            folder,
            port: ports.pop().unwrap(),
            peers: ports,
            environment: environment.map(|(name, value)| (name.to_string(), value)).into(),
            nodes: BTreeMap::new(),
        }
    }

    fn path(&self, on_page: &str) -> PathBuf {
        PathBuf::from(self.here(on_page))
    }

    /// A text of the page with this test's folders and addresses.
    fn here(&self, text: &str) -> String {
        let text = text.replace("/srv/", &format!("{}/", self.folder.display()));
        (1..)
            .zip(&self.peers)
            .fold(text, |text, (n, port)| text.replace(&format!("10.0.{n}.10:7100"), &format!("127.0.0.1:{port}")))
    }

    /// A shell that runs `script` as the user of PostgreSQL, since PostgreSQL does not run as root.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        if let Some(user) = user() {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command.args(["-euo", "pipefail", "-c", &self.here(script)]).current_dir(&self.folder);
        command.env_clear().envs(self.environment.iter().cloned()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn run(&self, script: &str) -> Output {
        // Servers that are started here inherit the files, so these cannot be pipes that are read to their end.
        let (out, err) = (self.folder.join("bin/out"), self.folder.join("bin/err"));
        let file = |path: &Path| fs::File::create(path).unwrap();
        let mut child = self.shell(script).stdout(file(&out)).stderr(file(&err)).spawn().expect("start a shell");
        let ended = tokio::time::timeout(SOON * 4, child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("it does not end: {script}")).unwrap();
        Output { status, stdout: fs::read(out).unwrap(), stderr: fs::read(err).unwrap() }
    }

    /// Runs a script that must succeed; returns what it printed.
    async fn must(&self, script: &str) -> String {
        let output = self.run(script).await;
        assert!(output.status.success(), "{script}: {}", told(&output));
        told(&output)
    }

    /// Runs a section of the page.
    async fn section(&mut self, title: &str) -> Vec<String> {
        let mut printed = Vec::new();
        for block in blocks(title) {
            printed.push(self.block(&block).await);
        }
        printed
    }

    /// Runs a block of commands, of which those that end with & start a node.
    async fn block(&mut self, block: &str) -> String {
        let (starts, script): (Vec<String>, Vec<String>) =
            commands(block).into_iter().partition(|command| command.ends_with(" &"));
        let printed = self.must(&script.join("\n")).await;
        for command in starts {
            self.start(command.trim_end_matches(" &"));
        }
        printed
    }

    /// Starts a node with a command that stays in the foreground.
    fn start(&mut self, command: &str) {
        let data = command.split_once("--data ").unwrap().1.split_whitespace().next().unwrap().to_string();
        let log = fs::File::options().create(true).append(true).open(self.folder.join("bin/log")).unwrap();
        let mut shell = self.shell(&format!("exec {command} --until-stdin-closes"));
        let child = shell.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        self.nodes.insert(data, child.expect("start a node"));
    }

    async fn stop(&mut self, data: &str) {
        let mut node = self.nodes.remove(data).unwrap();
        drop(node.stdin.take());
        let ended = tokio::time::timeout(SOON * 2, node.wait()).await;
        ended.unwrap_or_else(|_| panic!("{data} does not stop")).unwrap();
    }

    /// How to connect to the replicated database of a node.
    fn node(&self, data: &str) -> String {
        let text = fs::read_to_string(self.path(data).join("node.toml")).unwrap();
        let config: toml::Table = text.parse().unwrap();
        conninfo(config["postgres"]["port"].as_integer().unwrap() as u16)
    }

    async fn serves(&self, data: &str) -> Session {
        let made = || async { Ok(self.path(data).join("node.toml").exists()) };
        until(&format!("{data} is made"), SOON, made).await.unwrap();
        let at = self.node(data);
        until(&format!("{data} serves"), SOON * 3, || async {
            let Ok(session) = Session::open(&at).await else { return Ok(false) };
            Ok(session.run("begin; select onetrip.advance(); commit").await.is_ok())
        })
        .await
        .unwrap();
        Session::open(&at).await.unwrap()
    }
}

fn conninfo(port: u16) -> String {
    format!("host=127.0.0.1 port={port} user=postgres dbname=shop")
}

fn user() -> Option<nix::unistd::User> {
    let is_root = nix::unistd::geteuid().is_root();
    is_root.then(|| nix::unistd::User::from_name("postgres").unwrap().expect("the user postgres"))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The shell commands of a section, in blocks.
fn blocks(title: &str) -> Vec<String> {
    let section = PAGE.split_once(&format!("\n## {title}\n")).unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let blocks: Vec<String> =
        section.split("```sh\n").skip(1).map(|b| b.split("```").next().unwrap().to_string()).collect();
    assert!(!blocks.is_empty(), "{title}");
    blocks
}

/// Only where no command has quotes over several lines.
fn commands(block: &str) -> Vec<String> {
    match block.contains(" &\n") {
        true => block.replace("\\\n", " ").lines().map(str::to_string).collect(),
        false => vec![block.to_string()],
    }
}

/// A server that knows nothing of Onetrip, as Debian makes it: the socket is for users of the system.
async fn make_server(place: &Place, folder: &str, port: u16, settings: &str) {
    place
        .must(&format!(
            "initdb -D {folder} -U postgres --encoding UTF8 --locale=C.UTF-8 --auth=trust > /dev/null
             printf 'local all all peer\\nhost all all 127.0.0.1/32 trust\\n' > {folder}/pg_hba.conf
             printf \"port = {port}\\nunix_socket_directories = '{0}'\\n{settings}\" >> {folder}/postgresql.conf
             pg_ctl -D {folder} -l {folder}.log -w start > /dev/null
             createdb -h 127.0.0.1 -p {port} -U postgres shop",
            place.folder.display()
        ))
        .await;
}

/// The definitions, and a hash of the rows of each table.
#[derive(PartialEq, Debug)]
struct Contents {
    schema: String,
    globals: String,
    rows: BTreeMap<String, String>,
}

async fn contents(place: &Place, at: &str) -> Contents {
    let session = Session::open(at).await.unwrap();
    let tables = session
        .query(
            "select c.oid::regclass::text from pg_class c where relkind in ('r', 'm') and c.oid >= 16384
             and relnamespace::regnamespace::text not in ('onetrip', 'pg_catalog', 'information_schema', 'pg_toast')",
            &[],
        )
        .await
        .unwrap();
    let mut rows = BTreeMap::new();
    for table in tables.iter().map(|row| row.get::<_, String>(0)).filter(|t| t != LOCAL) {
        let hash =
            format!("select coalesce(md5(string_agg(md5(t::text), '' order by md5(t::text))), '') from only {table} t");
        rows.insert(table, text(&session, &hash).await.unwrap());
    }
    let plain = |dump: String, drop: &[&str]| {
        let kept = |line: &&str| {
            !line.starts_with("\\")
                && !line.starts_with("--")
                && !line.is_empty()
                && !drop.iter().any(|d| line.contains(d))
        };
        dump.lines().filter(kept).collect::<Vec<_>>().join("\n")
    };
    let schema = format!("pg_dump --schema-only --no-table-access-method --exclude-schema=onetrip '{at}'");
    let globals = format!("pg_dumpall --globals-only -d '{at}'");
    let setting = "SET default_table_access_method TO 'onetrip'";
    Contents {
        schema: plain(place.must(&schema).await, &["EXTENSION onetrip", "EXTENSION IF NOT EXISTS onetrip"]),
        globals: plain(place.must(&globals).await, &["onetrip_admin", setting]),
        rows,
    }
}

const NEXT: &str = "select nextval('shop.customer_id_seq'), nextval('shop.product_id_seq'), nextval('shop.ticket'),
    nextval('app.down'), nextval('app.round'), nextval('app.tight_id_seq')";

/// The next value of each sequence.
async fn next(session: &Session) -> Vec<i64> {
    let row = session.query_one(NEXT, &[]).await.unwrap();
    (0..row.len()).map(|n| row.get(n)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_database_is_adopted_grows_and_is_released() {
    let _turn = turn("adopt", "a plain PostgreSQL becomes a region, two join, one becomes plain again").await;
    let mut place = Place::new("adopt-test");
    let (old, at) = ("/srv/postgres/shop", conninfo(place.port));
    make_server(&place, old, place.port, "work_mem = '5MB'\\narchive_mode = on\\narchive_command = 'true'\\n").await;
    let session = Session::open(&at).await.unwrap();
    session.must(SHOP).await;
    session.must(MORE).await;
    session.must(TRAPS).await;
    session.must("alter system set maintenance_work_mem = '48MB'").await;
    session.must("create publication for_others for all tables with (publish = 'insert, truncate')").await;
    place.must(&format!("pgbench -i -s 2 -q '{at}'")).await;
    let before = contents(&place, &at).await;
    let values_before = next(&session).await;

    let check = place.section("Check").await.concat();
    for expected in [
        "the whole row",
        "shop.audit",
        "app.slot",
        "app.few",
        "shop.scratch",
        "another region: column app.marked.at, index app.marked_id_idx, view app.seen, function app.changed(xid), \
             function app.now_is()\n",
        "gives its objects others: column app.marked.of\n",
        "the database can be adopted",
    ] {
        assert!(check.contains(expected), "{expected}: {check}");
    }
    let because = |sql: &'static str, todo: &'static str| (sql, todo);
    for (made, undone, expected) in [
        (
            "create subscription s connection '' publication p with (connect = false, slot_name = none)",
            "drop subscription s",
            because("subscriptions: s", "DROP SUBSCRIPTION"),
        ),
        ("create schema onetrip", "drop schema onetrip", because("schema onetrip", "rename or drop it")),
    ] {
        session.must(made).await;
        let output = place.run(&blocks("Check")[0]).await;
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(expected.0) && told.contains(expected.1), "{told}");
        session.must(undone).await;
    }
    drop(session);

    let adopt = commands(&blocks("Adopt")[0]);
    let adopt = adopt.iter().find(|c| c.starts_with("onetrip adopt")).unwrap();
    refused(&place, adopt, "is running: stop it first").await;
    place.must(&format!("pg_ctl -D {old} -m immediate -w stop")).await;
    refused(&place, adopt, "not shut down cleanly").await;
    place.must(&format!("pg_ctl -D {old} -l {old}.log -w start && pg_ctl -D {old} -m fast -w stop")).await;
    refused(&place, &adopt.replace("--database shop", "--database postgres"), "cannot be adopted").await;
    goes_back_from_each_step(&place, adopt, old, &at, &before).await;

    // Killed once more, and the page's own command goes on.
    killed(&place, adopt, "converting").await;
    place.must(&format!("test ! -e {old}/PG_VERSION")).await;
    let starts = commands(&blocks("Adopt")[0]);
    place.must(adopt).await;
    place.start(starts.last().unwrap().trim_end_matches(" &"));
    let first = place.serves("/srv/onetrip/us-east-1").await;
    assert_eq!(place.node("/srv/onetrip/us-east-1"), at, "it is where the old server was");
    assert_eq!(contents(&place, &at).await, before);
    for (setting, value) in [("work_mem", "5MB"), ("maintenance_work_mem", "48MB"), ("archive_mode", "off")] {
        assert_eq!(text(&first, &format!("show {setting}")).await.unwrap(), value);
    }
    // Default privileges that take functions from everybody do not concern the extension's.
    first.must("set role app; select onetrip.position(); reset role").await;

    let [join, check] = <[String; 2]>::try_from(blocks("Join")).unwrap();
    place.block(&join).await;
    let joined = place.serves("/srv/onetrip/eu-west-1").await;
    place.block(&join.replace("eu-west-1", "us-west-2").replace("10.0.2.10", "10.0.3.10")).await;
    let third = place.serves("/srv/onetrip/us-west-2").await;

    let values = works_everywhere(&place, [&first, &joined, &third], &values_before).await;
    let check = place.must(&check).await;
    assert!(check.contains("equal at position"), "{check}");

    let mut released = blocks("Release");
    place.must(&released.remove(0)).await;
    drop(joined);
    place.stop("/srv/onetrip/eu-west-1").await;
    let (release, start) = released[0].split_once("\npg_ctl").unwrap();
    let named = "echo \"shared_preload_libraries = 'onetrip'\" >> /srv/onetrip/eu-west-1/postgres/postgresql.conf";
    place.must(named).await;
    for step in RELEASE {
        killed(&place, release, step).await;
    }
    let said = place.must(release).await;
    println!("adopt: {said}");
    place.must(&format!("pg_ctl{start}")).await;
    is_plain(&place, &first, &values).await;

    first.must("insert into shop.audit values ('goes on', 1); select lo_put(7001, 0, 'A'); create table app.later (id int primary key)").await;
    let seen = until("the third region shows it", SOON, || async { Ok(third.run("table app.later").await.is_ok()) });
    seen.await.unwrap();
    assert_eq!(text(&third, "select convert_from(lo_get(7001), 'UTF8')").await.unwrap(), "Adopted");
}

async fn refused(place: &Place, adopt: &str, why: &str) {
    let output = place.run(adopt).await;
    let said = told(&output);
    assert!(!output.status.success() && said.contains(why) && said.contains("nothing was changed"), "{why}: {said}");
    place.must("test -e /srv/postgres/shop/PG_VERSION && test ! -e /srv/onetrip/us-east-1/node.toml").await;
}

async fn killed(place: &Place, command: &str, step: &str) {
    let output = place.run(&format!("export ONETRIP_KILLED_AT={step}\nexec {}", command.trim_start())).await;
    assert_eq!(output.status.signal(), Some(9), "{step}: {}", told(&output));
}

async fn goes_back_from_each_step(place: &Place, adopt: &str, old: &str, at: &str, before: &Contents) {
    let back = "onetrip release --data /srv/onetrip/us-east-1";
    let files = |folder: &str| {
        let names = ["postgresql.conf", "postgresql.auto.conf", "pg_hba.conf", "pg_ident.conf"];
        names.map(|name| fs::read_to_string(place.path(folder).join(name)).unwrap())
    };
    let own = files(old);
    for (n, step) in STEPS.into_iter().enumerate() {
        killed(place, adopt, step).await;
        // Going back may be interrupted as well.
        if n >= STEPS.len() - BACK.len() {
            killed(place, back, BACK[n + BACK.len() - STEPS.len()]).await;
        }
        let said = place.must(back).await;
        assert!(said.contains("a plain PostgreSQL"), "{said}");
        assert_eq!(files(old), own, "after {step}");
        place.must(&format!("test ! -e {old}/onetrip.conf && pg_ctl -D {old} -l {old}.log -w start")).await;
        assert_eq!(contents(place, at).await, *before, "after {step}");
        let session = Session::open(at).await.unwrap();
        assert_eq!(number(&session, LEFT).await.unwrap(), 0, "after {step}");
        drop(session);
        place.must(&format!("pg_ctl -D {old} -m fast -w stop")).await;
    }
}

/// Debian's layout: the settings are outside of the data folder, which has none of its own until it is converted, and
/// none again as soon as it is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn settings_elsewhere_are_found_and_left_alone() {
    let _turn = turn("adopt_elsewhere", "a server with its settings elsewhere goes back from each step").await;
    let place = Place::new("elsewhere-test");
    let (old, etc) = ("/srv/postgres/shop", "/srv/postgres/etc");
    make_server(&place, old, place.port, "").await;
    let (hba, ident) = (place.path(etc).join("pg_hba.conf"), place.path(etc).join("pg_ident.conf"));
    let named = format!("hba_file = '{}'\\nident_file = '{}'\\n", hba.display(), ident.display());
    let start = format!("pg_ctl -D {old} -o '-c config_file={etc}/postgresql.conf' -l {old}.log -w start > /dev/null");
    let stop = format!("pg_ctl -D {old} -m fast -w stop > /dev/null");
    place
        .must(&format!(
            "{stop}\nmkdir {etc}\nmv {old}/postgresql.conf {old}/pg_hba.conf {old}/pg_ident.conf {etc}\n\
             printf \"{named}\" >> {etc}/postgresql.conf\n{start}\n{stop}"
        ))
        .await;
    let files = format!("cd {old} && ls | grep conf; md5sum postgresql.auto.conf");
    let own = place.must(&files).await;
    let adopt = commands(&blocks("Adopt")[0]).into_iter().find(|c| c.starts_with("onetrip adopt")).unwrap();
    let (file, back) = (format!("{etc}/postgresql.conf"), "onetrip release --data /srv/onetrip/us-east-1");
    let adopt = format!("{adopt} --config-file {file} --address 203.0.113.5:7100");
    // What an interrupted `init` would leave, and what a join.
    for left in ["postgres", "init.unfinished", "certifier.checkpoint"] {
        place.must(&format!("mkdir -p /srv/onetrip/us-east-1/{left}")).await;
        refused(&place, &adopt, &format!("contains {left}, which another node has left")).await;
        place.must("rm -r /srv/onetrip/us-east-1").await;
    }
    for (step, again) in [
        ("planned", "undo-moved"),
        ("moved", "undo-moved"),
        ("settings", "undo-plain"),
        ("converted", "undo-file"),
        ("renamed", "undo-file"),
    ] {
        killed(&place, &adopt, step).await;
        killed(&place, back, again).await;
        place.must(back).await;
        assert_eq!(place.must(&files).await, own, "after {step}");
        place.must(&start).await;
        let session = Session::open(&conninfo(place.port)).await.unwrap();
        assert_eq!(number(&session, LEFT).await.unwrap(), 0, "after {step}");
        drop(session);
        place.must(&stop).await;
    }
    place.must(&adopt).await;
    let node = "/srv/onetrip/us-east-1";
    let is_for = format!("openssl x509 -noout -ext subjectAltName -in {node}/tls/node.crt | tail -n 1");
    let made = place.must(&is_for).await;
    assert!(["127.0.0.1", "203.0.113.5"].iter().all(|ip| made.contains(&format!("IP Address:{ip}"))), "{made}");
    place.must(&format!("onetrip certificate --data {node}")).await;
    assert_eq!(place.must(&is_for).await, made);
    assert_eq!(place.must(&format!("stat -c %a {node}/node.toml")).await, "600\n");
    let release = "onetrip release --data /srv/onetrip/us-east-1 --to /srv/postgres/shop";
    place.must(release).await;
    // The same command again finds what it has made, and nothing at another place.
    place.must(release).await;
    let said = told(&place.run(&release.replace("postgres/shop", "postgres/other")).await);
    assert!(said.contains("has no PostgreSQL any more") && !said.contains("start it with"), "{said}");
}

/// What the extension may have left in the catalogs.
const LEFT: &str = "
    select (select count(*) from pg_am where amname = 'onetrip') + (select count(*) from pg_namespace where nspname = 'onetrip')
        + (select count(*) from pg_extension where extname = 'onetrip') + (select count(*) from pg_replication_origin)
        + (select count(*) from pg_roles where rolname = 'onetrip_admin')
        + (select count(*) from pg_db_role_setting where setconfig::text ~ 'onetrip')
        + (select count(*) from pg_depend where refclassid = 'pg_am'::regclass::oid)
        + (select count(*) from pg_class where relkind = 'S' and reloptions is not null)
        + (select count(*) from pg_class where relkind in ('r', 'm', 't') and relam <> 2)
        + (select count(*) from pg_default_acl where defaclrole = 0)";

/// Transactions, DDL and values of sequences in all regions; returns every value that was given.
async fn works_everywhere(place: &Place, regions: [&Session; 3], before: &[i64]) -> Vec<BTreeSet<i64>> {
    let nodes = ["us-east-1", "eu-west-1", "us-west-2"].map(|region| place.node(&format!("/srv/onetrip/{region}")));
    // -N: not on the same two rows.  On a busy machine pgbench may be late with its next statement, and a session that
    // is in the way and idle is ended, which pgbench does not survive.
    let [a, b, c] = nodes.each_ref().map(|at| format!("pgbench -n -N -c 2 -t 40 --max-tries=200 '{at}'"));
    let load =
        format!("{a} & pids=$!\n{b} & pids=\"$pids $!\"\n{c} & pids=\"$pids $!\"\nfor p in $pids; do wait $p; done");
    let said = place.must(&load).await;
    assert_eq!(said.matches("number of transactions actually processed: 80/80").count(), 3, "{said}");
    let mut values = vec![BTreeSet::new(); before.len()];
    for _ in 0..5 {
        for region in regions {
            let given = next(region).await;
            for (n, value) in given.into_iter().enumerate() {
                let new = if n == 3 { value < before[n] } else { value > before[n] };
                assert!(
                    new && values[n].insert(value),
                    "sequence {n}: {value} after {} and {:?}",
                    before[n],
                    values[n]
                );
            }
        }
    }
    for (n, region) in regions.into_iter().enumerate() {
        region
            .must(&format!(
                "create table app.made_{n} (id serial primary key); insert into app.made_{n} default values"
            ))
            .await;
        let inserted = format!("insert into shop.customer (name) values ('from {n}') returning id");
        let id = number(region, &inserted).await.unwrap();
        assert!(values[0].insert(id), "{id} was given before");
        region.must(&format!("delete from shop.audit where what = 'INSERT' and who = {}", n + 1)).await;
        region
            .must(&format!("update app.doc set body = body || '{{\"by\": {n}}}' where body @> '{{\"n\": {}}}'", n + 5))
            .await;
    }
    values
}

/// The region that was released shows what the others show, and nothing of Onetrip.
async fn is_plain(place: &Place, first: &Session, values: &[BTreeSet<i64>]) {
    let conf = fs::read_to_string(place.path("/srv/postgres/shop-eu/postgresql.conf")).unwrap();
    let port = conf.lines().find_map(|line| line.strip_prefix("port = ")).context("no port").unwrap();
    let at = conninfo(port.trim_matches('\'').parse().unwrap());
    assert_eq!(contents(place, &at).await, contents(place, &place.node("/srv/onetrip/us-east-1")).await);
    let session = Session::open(&at).await.unwrap();
    assert_eq!(number(&session, LEFT).await.unwrap(), 0);
    assert_eq!(text(&session, "show shared_preload_libraries").await.unwrap(), "");
    let defined =
        "select string_agg(format('%s %s %s %s %s %s', seqrelid::regclass, seqstart, seqincrement, seqmin, seqmax, seqcache), ';'
        order by seqrelid::regclass::text) from pg_sequence where seqrelid::regclass::text !~ '^onetrip'";
    assert_eq!(text(&session, defined).await.unwrap(), text(first, defined).await.unwrap());
    for (n, value) in next(&session).await.into_iter().enumerate() {
        let new = if n == 3 { value < *values[n].first().unwrap() } else { value > *values[n].last().unwrap() };
        assert!(new, "sequence {n}: {value} after {:?}", values[n]);
    }
    session.must("insert into shop.customer (name) values ('plain'); create table t (id int primary key)").await;
    let log = fs::read_to_string(place.path("/srv/postgres/shop-eu.log")).unwrap();
    assert!(!log.contains("onetrip") && !log.contains("ERROR"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_managed_server_is_followed_and_left() {
    let _turn = turn("adopt_managed", "rows come by logical replication into a plain server, which is adopted").await;
    let mut place = Place::new("managed-test");
    let other = ports::free_ports(1).unwrap()[0];
    make_server(&place, "/srv/postgres/managed", other, "wal_level = logical\\n").await;
    make_server(&place, "/srv/postgres/shop", place.port, "").await;
    let managed = Session::open(&conninfo(other)).await.unwrap();
    managed.must(SHOP).await;
    // As the page says: tables without keys need this.
    managed.must("alter table shop.audit replica identity full").await;
    place.environment.extend([("MANAGED".into(), conninfo(other)), ("PLAIN".into(), conninfo(place.port))]);
    let mut steps = blocks("From a managed server");
    let switch = steps.pop().unwrap();
    for step in steps {
        place.must(&step).await;
    }
    // Rows that come while it is followed.
    managed.must("insert into shop.customer (name) select 'late ' || g from generate_series(1, 50) g").await;
    managed.must("delete from shop.audit where who = 3; select nextval('shop.ticket')").await;
    place.must(&switch).await;
    place.must("psql -q \"$PLAIN\" -c 'refresh materialized view shop.sold'").await;
    let before = contents(&place, &conninfo(other)).await.rows;
    let last = number(&managed, "select last_value from shop.ticket").await.unwrap();
    place.section("Adopt").await;
    let session = place.serves("/srv/onetrip/us-east-1").await;
    assert_eq!(contents(&place, &conninfo(place.port)).await.rows, before);
    assert!(number(&session, "select nextval('shop.ticket')").await.unwrap() > last);
    session
        .must("insert into shop.customer (name) values ('here'); create view mine as select * from onetrip.status")
        .await;
    drop(session);
    // The only node of a cluster can be released, too.
    let release = "onetrip release --data /srv/onetrip/us-east-1 --to /srv/postgres/shop";
    place.stop("/srv/onetrip/us-east-1").await;
    let said = told(&place.run(release).await);
    assert!(said.contains("view public.mine; drop them first") && said.contains("nothing was changed"), "{said}");
    place.start("onetrip start --data /srv/onetrip/us-east-1");
    place.serves("/srv/onetrip/us-east-1").await.must("drop view mine").await;
    place.stop("/srv/onetrip/us-east-1").await;
    place.must(release).await;
    place.must("pg_ctl -D /srv/postgres/shop -l /srv/postgres/shop.log -w start").await;
    let session = Session::open(&conninfo(place.port)).await.unwrap();
    assert_eq!(number(&session, "select count(*) from shop.customer where name = 'here'").await.unwrap(), 1);
    assert_eq!(number(&session, LEFT).await.unwrap(), 0);
}
