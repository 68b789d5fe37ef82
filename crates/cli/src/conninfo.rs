//! Sessions with a PostgreSQL that libpq's connection strings name, with TLS as libpq has it.
//!
//! | `sslmode` | encrypted | who is believed |
//! |---|---|---|
//! | `disable` | no | anybody |
//! | `allow`, `prefer` (default) | if the server asks for it; if it can | anybody; with a root file, as `verify-ca` |
//! | `require` | yes | the same |
//! | `verify-ca` | yes | whom an authority in `sslrootcert` has given a certificate |
//! | `verify-full` | yes | of these, who has it for the host's name or address |
//!
//! `sslrootcert`, `sslcert` and `sslkey` are as in libpq, with its environment variables and the files in
//! `~/.postgresql` that it looks for; so is `sslrootcert=system`.  Passwords are in the string or in `PGPASSWORD`.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Poller, Poll};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use onetrip_client::tls::{self, Trust};
use onetrip_node::postgres::SEARCH_PATH;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Client, Config};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::{client, TlsConnector};

use crate::BadUsage;

/// Connects, and has the connection carried on by a task of its own.  No schema of a user's is in its search path.
pub async fn connect(conninfo: &str, application_name: &str) -> Result<Client> {
    let Target { mut config, modes, tls } = Target::of(conninfo, &from_environment)?;
    config.connect_timeout(Duration::from_secs(10)).application_name(application_name);
    let mut refused = None;
    for mode in modes {
        match config.ssl_mode(mode).connect(tls.clone()).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                // A pooler may refuse or ignore settings with which a connection begins.
                client.batch_execute(&format!("SET search_path = {SEARCH_PATH}")).await.context("set search_path")?;
                return Ok(client);
            }
            Err(e) => {
                // What has nothing to do with encryption is the same without it.
                let of_client =
                    e.as_db_error().is_some_and(|e| *e.code() != SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
                refused = Some(e);
                if of_client {
                    break;
                }
            }
        }
    }
    let refused = refused.context("no way to connect")?;
    Err(refused).with_context(|| format!("connect to {}", shown(&config)))
}

fn shown(config: &Config) -> String {
    let host = |host: &Host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    };
    let hosts: Vec<String> = config.get_hosts().iter().map(host).collect();
    let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
    format!("{} port {}", hosts.join(", "), if ports.is_empty() { "5432".into() } else { ports.join(", ") })
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What a connection string means.
struct Target {
    config: Config,
    /// Tried in this order, as long as the server does not let the client in.
    modes: Vec<SslMode>,
    tls: Tls,
}

impl Target {
    fn of(conninfo: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Target> {
        let wrong = |why: &str| BadUsage(format!("the connection string {:?}: {why}", without_secrets(conninfo)));
        let (own, rest) = split(conninfo).map_err(|why| wrong(&why))?;
        let mut config: Config = rest.parse().map_err(|e: tokio_postgres::Error| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            wrong(&why)
        })?;
        if let (None, Some(password)) = (config.get_password(), environment("PGPASSWORD")) {
            config.password(password);
        }
        // It is the name, too, where there is none.
        if config.get_hosts().is_empty() {
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        let given = |name: &str| {
            let written = own.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            written.or_else(|| environment(&format!("PG{}", name.to_uppercase()))).filter(|value| !value.is_empty())
        };
        let of_home = |name: &str| {
            let file = PathBuf::from(environment("HOME")?).join(".postgresql").join(name);
            file.exists().then_some(file)
        };
        let root = given("sslrootcert");
        let of_system = root.as_deref() == Some("system");
        let mode = given("sslmode").unwrap_or_else(|| if of_system { "verify-full" } else { "prefer" }.into());
        if of_system && mode != "verify-full" {
            return Err(wrong(&format!("sslrootcert=system asks for sslmode=verify-full, not {mode}")).into());
        }
        let modes = match mode.as_str() {
            // Over a socket nothing is encrypted, whatever is asked for.
            _ if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) => vec![SslMode::Disable],
            "disable" => vec![SslMode::Disable],
            "allow" => vec![SslMode::Disable, SslMode::Require],
            "prefer" => vec![SslMode::Prefer, SslMode::Disable],
            "require" | "verify-ca" | "verify-full" => vec![SslMode::Require],
            other => return Err(wrong(&format!("there is no sslmode {other}")).into()),
        };
        if modes == [SslMode::Disable] {
            return Ok(Target { config, modes, tls: Tls::new(Trust::Anybody, None)? });
        }
        let file = root.filter(|_| !of_system).map(PathBuf::from).or_else(|| of_home("root.crt"));
        let roots = match (of_system, file) {
            (true, _) => Some(tls::system_authorities()?),
            (false, Some(file)) => Some(tls::authorities(&file)?),
            (false, None) => None,
        };
        let trust = match (mode.as_str(), roots) {
            ("verify-full", Some(roots)) => Trust::NameOf(Arc::new(roots)),
            (_, Some(roots)) => Trust::AnyNameOf(Arc::new(roots)),
            ("verify-ca" | "verify-full", None) => {
                return Err(
                    wrong(&format!("sslmode={mode} needs a file with authorities: name it in sslrootcert")).into()
                )
            }
            (_, None) => Trust::Anybody,
        };
        let certificate = given("sslcert").map(PathBuf::from).or_else(|| of_home("postgresql.crt"));
        let key = given("sslkey").map(PathBuf::from).or_else(|| of_home("postgresql.key"));
        let own = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(own_certificate(&certificate, &key)?),
            (Some(certificate), None) => bail!("{} has no key: name it in sslkey", certificate.display()),
            (None, _) => None,
        };
        Ok(Target { config, modes, tls: Tls::new(trust, own)? })
    }
}

type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn own_certificate(certificate: &Path, key: &Path) -> Result<Own> {
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.with_context(|| format!("read {}", certificate.display()))?;
    let key = PrivateKeyDer::from_pem_file(key).with_context(|| format!("read {}", key.display()))?;
    Ok((chain, key))
}

/// Parameters that are read here.
const OWN: [&str; 4] = ["sslmode", "sslrootcert", "sslcert", "sslkey"];

type Pairs = Vec<(String, String)>;

/// These parameters, and the string without them.
fn split(conninfo: &str) -> Result<(Pairs, String), String> {
    if conninfo.starts_with("postgres://") || conninfo.starts_with("postgresql://") {
        let (place, query) = conninfo.split_once('?').unwrap_or((conninfo, ""));
        let is_own = |pair: &&str| OWN.contains(&pair.split('=').next().unwrap_or_default());
        let (own, others): (Vec<&str>, Vec<&str>) = query.split('&').filter(|p| !p.is_empty()).partition(is_own);
        let mut pairs = Vec::new();
        for pair in own {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair} has no value"))?;
            pairs.push((key.to_string(), percent_decoded(value).ok_or_else(|| format!("{pair} cannot be read"))?));
        }
        let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        return Ok((pairs, format!("{place}{query}")));
    }
    let (own, others): (Pairs, Pairs) = pairs(conninfo)?.into_iter().partition(|(key, _)| OWN.contains(&key.as_str()));
    let others: Vec<String> = others.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect();
    Ok((own, others.join(" ")))
}

/// `key = value` again and again; a value may be quoted, and a backslash takes the next character as it is.
fn pairs(conninfo: &str) -> Result<Pairs, String> {
    let mut rest = conninfo.trim_start();
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let key = rest[..end].to_string();
        let after = rest[end..].trim_start().strip_prefix('=');
        // What has none may be the rest of a password with a space in it.
        let before =
            || pairs.last().map_or(String::new(), |(before, _): &(String, String)| format!(" behind that of {before}"));
        let after =
            after.filter(|_| !key.is_empty()).ok_or_else(|| format!("a value{} has no name", before()))?.trim_start();
        let quoted = after.starts_with('\'');
        let mut chars = after[usize::from(quoted)..].chars();
        let mut value = String::new();
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_whitespace() => break,
                Some(c) => value.push(c),
                None if quoted => return Err(format!("the value of {key} does not end")),
                None => break,
            }
        }
        rest = chars.as_str().trim_start();
        pairs.push((key, value));
    }
    Ok(pairs)
}

pub fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (byte, after) = match byte {
            b'%' => (u8::from_str_radix(std::str::from_utf8(after.get(..2)?).ok()?, 16).ok()?, &after[2..]),
            byte => (byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// For messages.
pub fn without_secrets(conninfo: &str) -> String {
    const SHOWN: [&str; 6] = ["host", "hostaddr", "port", "dbname", "user", "sslmode"];
    match (pairs(conninfo), conninfo.contains("://")) {
        (Ok(pairs), false) => {
            let shown = pairs.iter().filter(|(key, _)| SHOWN.contains(&key.as_str()));
            shown.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        }
        _ => "...".into(),
    }
}

#[derive(Clone)]
struct Tls {
    config: Arc<ClientConfig>,
    by_name: bool,
}

impl Tls {
    fn new(trust: Trust, own: Option<Own>) -> Result<Tls> {
        let by_name = matches!(trust, Trust::NameOf(_));
        let mut config = tls::client(trust, own)?;
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Tls { config: Arc::new(config), by_name })
    }
}

struct Handshake {
    connector: TlsConnector,
    name: Result<ServerName<'static>, String>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        // A socket has no name; and who is believed whatever his name may have one that no certificate could have.
        let name = ServerName::try_from(host.to_string()).map_err(|e| format!("{host:?}: {e}"));
        let any = ServerName::try_from("server").expect("a valid name");
        let name = if self.by_name { name } else { name.or(Ok(any)) };
        Ok(Handshake { connector: TlsConnector::from(self.config.clone()), name })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = self.name.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
            Ok(Encrypted(self.connector.connect(name, stream).await?))
        })
    }
}

struct Encrypted<S>(client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let shown = self.0.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let end_point = shown.and_then(|certificate| onetrip_node::tls::end_point(certificate));
        end_point.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Poller<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Poller<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Poller<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(conninfo: &str) -> Result<Target> {
        Target::of(conninfo, &|_| None)
    }

    #[test]
    fn strings_are_read_as_libpq_reads_them() {
        for (conninfo, own, rest) in [
            ("host=a  sslmode=require", vec![("sslmode", "require")], "host='a'"),
            (r"sslrootcert = 'a b\'c' user=x\ y", vec![("sslrootcert", "a b'c")], "user='x y'"),
            ("password='' dbname=d", vec![], "password='' dbname='d'"),
            (
                "postgresql://u:p@h:1/d?sslmode=verify-ca&connect_timeout=3&sslrootcert=%2Fa%20b",
                vec![("sslmode", "verify-ca"), ("sslrootcert", "/a b")],
                "postgresql://u:p@h:1/d?connect_timeout=3",
            ),
            ("postgres://h/d", vec![], "postgres://h/d"),
            ("", vec![], ""),
        ] {
            let own = own.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            assert_eq!(split(conninfo), Ok((own, rest.to_string())), "{conninfo}");
        }
        for bad in ["host", "host=a b", "host='a", "=a", "postgres://h/d?sslmode", "postgres://h/d?sslmode=%f"] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn modes_ask_for_what_libpq_asks_for() {
        use SslMode::{Disable, Prefer, Require};
        for (conninfo, modes) in [
            ("host=a", vec![Prefer, Disable]),
            ("host=a sslmode=allow", vec![Disable, Require]),
            ("host=a sslmode=disable sslrootcert=/nonexistent", vec![Disable]),
            ("host=a sslmode=require", vec![Require]),
            ("host=/tmp sslmode=verify-full", vec![Disable]),
        ] {
            assert_eq!(target(conninfo).unwrap().modes, modes, "{conninfo}");
        }
        let of = |conninfo: &str, name: &'static str, value: &'static str| {
            Target::of(conninfo, &|asked| (asked == name).then(|| value.to_string()))
        };
        assert_eq!(of("host=a", "PGSSLMODE", "require").unwrap().modes, [Require]);
        assert_eq!(of("host=a sslmode=disable", "PGSSLMODE", "require").unwrap().modes, [Disable]);
        assert_eq!(of("host=a", "PGPASSWORD", "p").unwrap().config.get_password(), Some(&b"p"[..]));
        for (bad, why) in [
            ("host=a sslmode=verify", "there is no sslmode verify"),
            ("host=a sslmode=verify-full", "needs a file with authorities"),
            ("host=a sslrootcert=system sslmode=require", "asks for sslmode=verify-full"),
            ("host=a sslrootcert=/nonexistent", "read /nonexistent"),
            ("host=a password=secret nonsense=1", "nonsense"),
        ] {
            let said = format!("{:#}", target(bad).err().expect(bad));
            assert!(said.contains(why) && !said.contains("secret"), "{bad}: {said}");
        }
    }

    #[test]
    fn an_error_shows_where_it_connects_and_no_secret() {
        for (conninfo, shown) in [
            ("host=a port=1 password=secret", "host=a port=1"),
            (
                "host=a user=u dbname=d sslmode=verify-full sslcert=c sslkey=k sslpassword=secret",
                "host=a user=u dbname=d sslmode=verify-full",
            ),
            ("hostaddr=10.0.0.1 passfile=secret options='-c x=secret'", "hostaddr=10.0.0.1"),
            ("host=a password=se cret", "..."),
            ("postgres://u:secret@h/d?sslpassword=secret", "..."),
        ] {
            assert_eq!(without_secrets(conninfo), shown);
        }
        for bad in ["host=a sslpassword=secret nonsense=1", "host=a password=my secret", "host=a password='secret"] {
            let said = format!("{:#}", target(bad).err().expect(bad));
            assert!(!said.contains("secret"), "{bad}: {said}");
        }
    }

    #[test]
    fn an_address_alone_is_the_name_to_check() {
        let config = target("hostaddr=10.0.0.1").unwrap().config;
        assert_eq!(config.get_hosts(), [Host::Tcp("10.0.0.1".into())]);
    }
}
