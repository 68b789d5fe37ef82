//! Rolling upgrades with releases as they are shipped (`make test-upgrade`, which builds them): the previous release
//! and this one in one cluster, under load, in each mixture, there and back; and PostgreSQL's files, replaced region by
//! region.
//!
//! ONETRIP_RELEASES is the folder that `scripts/test-upgrade.sh` makes: `previous` and `present`, each with the command
//! and the extension's files, and `postgres`, a copy of PostgreSQL.

mod load;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use load::{Load, MultiHost};
use onetrip_lab::{Cluster, Node};

const REGIONS: [&str; 3] = ["a", "b", "c"];
/// How long each mixture of releases works.
const MIXED: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq)]
enum Release {
    Previous,
    Present,
}

/// Three regions, each with a command and a PostgreSQL of its own, whose files are replaced one region at a time.
struct World {
    cluster: Cluster,
    folder: PathBuf,
    releases: PathBuf,
    steps: usize,
}

/// A file takes the place of another at once, as a package manager does it: a process that has the old one keeps it.
fn put(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new).with_context(|| format!("copy {}", from.display()))?;
    fs::rename(&new, to).with_context(|| format!("replace {}", to.display()))
}

fn run(command: &mut Command) -> Result<(bool, String)> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok((output.status.success(), said))
}

fn must(command: &mut Command) -> Result<String> {
    let (done, said) = run(command)?;
    ensure!(done, "{command:?}: {said}");
    Ok(said)
}

async fn one(client: &tokio_postgres::Client, query: &str) -> Result<String> {
    Ok(client
        .query_one(query, &[])
        .await
        .with_context(|| query.to_owned())?
        .try_get::<_, Option<String>>(0)?
        .unwrap_or_default())
}

impl World {
    /// Made by this release, and not started yet.
    fn of(release: Release) -> Result<World> {
        let releases =
            PathBuf::from(std::env::var_os("ONETRIP_RELEASES").context("ONETRIP_RELEASES: make test-upgrade")?);
        let folder = tempfile::Builder::new().prefix("onetrip-upgrade-").tempdir_in("/var/tmp")?.keep();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        for region in REGIONS {
            must(
                Command::new("cp")
                    .arg("-a")
                    .arg(releases.join("postgres"))
                    .arg(folder.join(format!("postgres-{region}"))),
            )?;
            fs::create_dir(folder.join(format!("bin-{region}")))?;
            install(&releases, &folder, region, release)?;
        }
        let topology = folder.join("topology.toml");
        fs::write(&topology, REGIONS.map(|name| format!("[[region]]\nname = \"{name}\"\n")).concat())?;
        let mut init = Command::new(command(&folder, "a"));
        init.args(["init", "--auth", "trust", "--topology"]).arg(topology);
        must(init.arg("--data").arg(folder.join("nodes")).arg("--bin-dir").arg(bin_dir(&folder, "a")))?;
        for region in REGIONS {
            let file = folder.join("nodes").join(region).join("node.toml");
            let text = fs::read_to_string(&file)?;
            let of = |region| bin_dir(&folder, region).display().to_string();
            ensure!(text.contains(&of("a")), "{text}");
            fs::write(&file, text.replace(&of("a"), &of(region)))?;
        }
        let cluster = Cluster::of_folder(&folder, &REGIONS, |region| command(&folder, region))?;
        Ok(World { cluster, folder, releases, steps: 0 })
    }

    async fn start(&self) -> Result<()> {
        self.cluster.nodes().iter().try_for_each(Node::start)?;
        self.cluster.wait_ready().await
    }

    /// Stops a region, replaces its files and starts it again.
    async fn change(&self, region: usize, release: Release) -> Result<()> {
        self.cluster.node(region).stop().await?;
        install(&self.releases, &self.folder, REGIONS[region], release)?;
        self.cluster.node(region).restart().await?;
        self.cluster.wait_ready().await
    }

    fn onetrip(&self, release: Release, args: &[&str], region: usize) -> Command {
        let mut onetrip = Command::new(self.releases.join(name(release)).join("onetrip"));
        onetrip.args(args).arg("--data").arg(self.cluster.node(region).folder());
        onetrip
    }

    /// What is asked of every mixture: each region makes tables, rows, sequences, large and prepared transactions, and
    /// reads fresh; all regions are equal.
    async fn works(&mut self, what: &str, load: &Load) -> Result<()> {
        tokio::time::sleep(MIXED).await;
        self.steps += 1;
        for (region, name) in REGIONS.iter().enumerate() {
            let client = self.cluster.connect(region).await?;
            let table = format!("step_{}_{name}", self.steps);
            let scripts = [
                format!("create table {table} (id bigserial primary key, t text)"),
                // The last row travels in parts.
                format!(
                    "insert into {table} (t) select 'row ' || n from generate_series(1, 50) n;
                     insert into {table} (t) select string_agg(md5(n::text), '') from generate_series(1, 60000) n"
                ),
                // Tables that are written as a whole, or emptied: the releases have different operations for that.
                format!("create table {table}_a as select n as id from generate_series(1, 20) n"),
                format!("alter table {table}_a add column r float8 default random()"),
                format!("create materialized view {table}_m as select * from {table}_a"),
                format!("insert into {table}_a values (21, 0); refresh materialized view {table}_m"),
                format!("create unlogged table {table}_u as select n as id from generate_series(1, 20) n"),
                format!("alter table {table}_u set logged"),
                format!(
                    "create table {table}_p (id int primary key); create table {table}_f (id int references {table}_p)"
                ),
                format!("insert into {table}_p values (1); insert into {table}_f values (1)"),
                format!("truncate {table}_p cascade"),
                format!(
                    "begin; update {table} set t = 'prepared' where id = (select min(id) from {table});
                     prepare transaction '{table}'"
                ),
            ];
            for script in scripts {
                client.batch_execute(&script).await.with_context(|| format!("{what}, in {name}: {script}"))?;
            }
            // Another region ends what this one has prepared.
            let other = self.cluster.connect((region + 1) % REGIONS.len()).await?;
            let deadline = Instant::now() + SOON;
            while let Err(e) = other.batch_execute(&format!("commit prepared '{table}'")).await {
                ensure!(Instant::now() < deadline, "{what}: {e:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other.batch_execute("set onetrip.read = fresh").await?;
            let count = one(&other, &format!("select count(*)::text from {table} where t = 'prepared'")).await?;
            ensure!(count == "1", "{what}: {count} rows");
            let count = format!(
                "select (select count(r) from {table}_a) || ' ' || (select count(r) from {table}_m) || ' ' ||
                        (select count(*) from {table}_u) || ' ' || (select count(*) from {table}_f)"
            );
            let counts = one(&other, &count).await?;
            ensure!(counts == "21 21 20 0", "{what}, written in {name}: {counts}");
            // What the members say of each other, and the SQL objects with either library.
            let heard = one(&client, "select count(*)::text from onetrip.members where heard = 'now'").await?;
            ensure!(heard == "3", "{what}: {name} hears {heard} members");
        }
        load.goes_on().await.with_context(|| what.to_owned())?;
        println!("{what}: {}", load.told());
        Ok(())
    }

    /// Nothing that was acknowledged is lost, and the regions are equal.
    async fn nothing_is_lost(&self, load: Load) -> Result<()> {
        let acknowledged = load.stop().await?;
        self.cluster.converge().await?;
        for (region, name) in REGIONS.iter().enumerate() {
            acknowledged.are_in(&self.cluster.connect(region).await?).await.with_context(|| format!("in {name}"))?;
        }
        let mut check = Command::new(self.releases.join("present").join("onetrip"));
        let said = must(check.args(["check", "--timeout", "60", "--data"]).arg(self.cluster.data()))?;
        ensure!(said.contains("equal"), "{said}");
        println!("{}; {}", acknowledged.told(), said.trim().lines().last().unwrap_or_default());
        Ok(())
    }
}

fn name(release: Release) -> &'static str {
    match release {
        Release::Previous => "previous",
        Release::Present => "present",
    }
}

fn command(folder: &Path, region: &str) -> PathBuf {
    folder.join(format!("bin-{region}")).join("onetrip")
}

fn bin_dir(folder: &Path, region: &str) -> PathBuf {
    folder.join(format!("postgres-{region}")).join("usr/lib/postgresql/15/bin")
}

fn install_library(releases: &Path, folder: &Path, region: &str, release: Release) -> Result<()> {
    let postgres = folder.join(format!("postgres-{region}"));
    put(&releases.join(name(release)).join("onetrip.so"), &postgres.join("usr/lib/postgresql/15/lib/onetrip.so"))
}

/// The command and the extension of a release; files of another one go.
fn install(releases: &Path, folder: &Path, region: &str, release: Release) -> Result<()> {
    let (from, postgres) = (releases.join(name(release)), folder.join(format!("postgres-{region}")));
    put(&from.join("onetrip"), &command(folder, region))?;
    install_library(releases, folder, region, release)?;
    let scripts = postgres.join("usr/share/postgresql/15/extension");
    for old in fs::read_dir(&scripts)?.filter_map(|file| file.ok()).map(|file| file.file_name()) {
        if old.to_string_lossy().starts_with("onetrip") {
            fs::remove_file(scripts.join(old))?;
        }
    }
    for new in fs::read_dir(from.join("extension"))?.filter_map(|file| file.ok()) {
        put(&new.path(), &scripts.join(new.file_name()))?;
    }
    Ok(())
}

/// Goal: three regions go from the previous release to this one, back, and there again, one region at a time, under
/// load from all regions, and nothing that was acknowledged is lost.  Then the upgrade is finished, and the previous
/// release is refused.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-upgrade builds the previous release"]
async fn a_release_comes_region_by_region_and_goes_back() -> Result<()> {
    let mut world = World::of(Release::Previous)?;
    world.start().await?;
    let load = Load::start(&world.cluster).await?;
    let level = |region: usize| {
        let node = world.cluster.node(region);
        async move { Ok::<_, anyhow::Error>(node.status().await?["level"].as_u64()) }
    };
    ensure!(level(0).await?.is_none(), "the previous release knows no levels");
    for (region, name) in REGIONS.iter().enumerate() {
        world.change(region, Release::Present).await?;
        world.works(&format!("upgraded {name}"), &load).await?;
        if region + 1 < REGIONS.len() {
            // It is not too early for the page, and too early for the end.
            let shown = must(&mut world.onetrip(Release::Present, &["upgrade"], region))?;
            ensure!(shown.contains("still to be upgraded before level 1 can come into force: node"), "{shown}");
            let (done, said) = run(&mut world.onetrip(Release::Present, &["upgrade", "--finish"], region))?;
            ensure!(!done && said.contains("node 3 in c must be upgraded first"), "{said}");
            let client = world.cluster.connect(region).await?;
            let why =
                client.batch_execute("alter extension onetrip update").await.err().context("it was carried out")?;
            let why = why.as_db_error().context("an error of the server")?.to_string();
            ensure!(why.contains("0.2"), "{why}");
        }
    }
    for (region, name) in REGIONS.iter().enumerate() {
        world.change(region, Release::Previous).await?;
        world.works(&format!("back in {name}"), &load).await?;
    }
    for (region, name) in REGIONS.iter().enumerate().rev() {
        world.change(region, Release::Present).await?;
        world.works(&format!("upgraded {name} again"), &load).await?;
    }

    // A new node whose server has the previous library.
    world.cluster.node(2).stop().await?;
    install_library(&world.releases, &world.folder, REGIONS[2], Release::Previous)?;
    world.cluster.node(2).restart().await?;
    world.cluster.wait_ready().await?;
    let shown = must(&mut world.onetrip(Release::Present, &["upgrade"], 1))?;
    ensure!(shown.contains("the PostgreSQL of node 3 in c has loaded an older library"), "{shown}");
    let (done, said) = run(&mut world.onetrip(Release::Present, &["upgrade", "--finish"], 1))?;
    ensure!(!done && said.contains("node 3 in c must be restarted first"), "{said}");
    world.works("the previous library in c", &load).await?;
    world.change(2, Release::Present).await?;

    let shown = must(&mut world.onetrip(Release::Present, &["upgrade"], 1))?;
    ensure!(shown.contains("every member knows level 1: `onetrip upgrade --finish`"), "{shown}");
    let said = must(&mut world.onetrip(Release::Present, &["upgrade", "--finish"], 1))?;
    ensure!(said.contains("format level 1 is in force"), "{said}");
    for (region, name) in REGIONS.iter().enumerate() {
        let deadline = Instant::now() + SOON;
        while world.cluster.node(region).status().await?["level"] != 1 {
            ensure!(Instant::now() < deadline, "level 1 does not come to {name}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let again = must(&mut world.onetrip(Release::Present, &["upgrade", "--finish"], 0))?;
    ensure!(again.contains("in force already"), "{again}");
    let shown = must(&mut world.onetrip(Release::Present, &["upgrade"], 0))?;
    ensure!(shown.contains("ALTER EXTENSION onetrip UPDATE TO '0.2'"), "{shown}");
    world.cluster.connect(1).await?.batch_execute("alter extension onetrip update").await?;
    world.cluster.converge().await?;
    for region in 0..REGIONS.len() {
        let client = world.cluster.connect(region).await?;
        let version = one(&client, "select extversion from pg_extension where extname = 'onetrip'").await?;
        ensure!(version == "0.2", "{version}");
        let shown = "select string_agg(extension_version || ' ' || format_level, ', ') from onetrip.members";
        let deadline = Instant::now() + SOON;
        while one(&client, shown).await? != "0.2 1, 0.2 1, 0.2 1" {
            ensure!(Instant::now() < deadline, "{}", one(&client, shown).await?);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    world.works("finished", &load).await?;

    // Its disk says that the previous release must not run here, and it changes nothing there.
    world.cluster.node(2).stop().await?;
    install(&world.releases, &world.folder, REGIONS[2], Release::Previous)?;
    world.cluster.node(2).start()?;
    let ended = world.cluster.node(2).wait_ended(SOON).await?;
    ensure!(!ended.success(), "the previous release runs in a cluster of level 1");
    println!("the previous release: {}", world.cluster.node(2).log_tail(1));
    install(&world.releases, &world.folder, REGIONS[2], Release::Present)?;
    world.cluster.node(2).restart().await?;
    world.cluster.wait_ready().await?;
    world.works("the previous release was refused", &load).await?;
    world.nothing_is_lost(load).await?;
    world.cluster.stop().await
}

/// Goal: PostgreSQL is replaced region by region, as for a minor release, and a client that knows all three regions is
/// not without one for long.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-upgrade builds the previous release"]
async fn postgresql_is_replaced_region_by_region() -> Result<()> {
    let world = World::of(Release::Present)?;
    world.start().await?;
    let load = Load::start(&world.cluster).await?;
    let client = MultiHost::start(&world.cluster).await?;
    for (region, name) in REGIONS.iter().enumerate() {
        tokio::time::sleep(MIXED).await;
        let node = world.cluster.node(region);
        node.stop().await?;
        let postgres = world.folder.join(format!("postgres-{name}"));
        fs::remove_dir_all(&postgres)?;
        must(Command::new("cp").arg("-a").arg(world.releases.join("postgres")).arg(&postgres))?;
        install(&world.releases, &world.folder, name, Release::Present)?;
        node.restart().await?;
        world.cluster.wait_ready().await?;
    }
    tokio::time::sleep(MIXED).await;
    load.goes_on().await?;
    let (commits, pause) = client.stop().await?;
    println!("a client of three regions: {commits} commits, the longest pause between two is {} ms", pause.as_millis());
    if pause > Duration::from_secs(15) {
        bail!("a client waited for {} s", pause.as_secs_f64());
    }
    world.nothing_is_lost(load).await?;
    world.cluster.stop().await
}
