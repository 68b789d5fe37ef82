//! Rehearsals: write sets that are tried in the other regions before they are proposed.
//!
//! The asking node sends the write set to each peer with a PostgreSQL.  There `onetrip.rehearse` carries it out in a
//! session of its own, and rolls it back.  In a region that cannot be reached, or has no room, the write set
//! counts as untried at once; in one that does not answer, when the time is up.
//!
//! Invariants:
//! - A failure is an error that PostgreSQL raised because of the write set itself.  Nothing that goes away by itself (a
//!   lock, a timeout, a full disk, a shutdown) counts as a failure.
//! - Functions of users run there and may say what they like: of a session, no more than [`HEARD_BYTES_MAX`] is read.

use super::asked::LOOK;
use super::frame::{Channel, Frame};
use super::link::Link;
use super::Transport;
use crate::postgres::SEARCH_PATH;
use onetrip_core::agent::{Failure, Rehearsal};
use onetrip_core::{LogIndex, RegionId};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_postgres::error::DbError;
use tokio_postgres::{Client, NoTls};

/// A larger write set would hold up the appends on the same channel.
const WRITE_SET_BYTES_MAX: usize = 8 << 20;
/// How many rehearsals this node's PostgreSQL carries out at the same time.
pub(super) const PLACES: usize = 4;
/// Time for the round trip and the start of a session, on top of the rehearsal's own timeout.
const ON_TOP: Duration = Duration::from_millis(1000);
/// `onetrip.rehearse` cuts each text of an error to less than 64 KiB.
const HEARD_BYTES_MAX: usize = 4 << 20;
/// What comes first where the other regions are to say what statements come to (`docs/agent-protocol.md`).
const COMPARES: u8 = 0xc0;
const TOO_MUCH: &str = "functions raise messages of more than 4 MiB there";

/// What one region answers about a write set.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Fine,
    Fails(Failure),
    /// Why it could not be tried there now.
    Untried(String),
}

/// The answers of all other regions together.
#[derive(Debug, Default)]
pub struct Rehearsed {
    pub failure: Option<(RegionId, Failure)>,
    /// Each is a region and the reason, for people.
    pub untried: Vec<String>,
}

impl Transport {
    /// Has every other region that can be reached try the write set.  Returns at the first failure, when all have
    /// answered, or at the deadline.
    pub async fn rehearse(&self, rehearsal: Rehearsal) -> Rehearsed {
        let deadline = Instant::now() + Duration::from_millis(rehearsal.timeout_ms.into()) + ON_TOP;
        let mut result = Rehearsed::default();
        // What statements come to is asked again and again.
        let counts = u64::from(rehearsal.write_set.first() != Some(&COMPARES));
        let is_untried = |link: &Link| link.not_rehearsed.fetch_add(counts, Ordering::Relaxed);
        let mut links = self.links();
        // Only a member with a PostgreSQL has sent facts; a witness has none.
        links.retain(|link| link.facts.lock().expect("no code that holds this lock panics").is_some());
        if rehearsal.write_set.len() > WRITE_SET_BYTES_MAX {
            links.iter().for_each(|link| _ = is_untried(link));
            result.untried.push(format!("everywhere: the write set has more than {WRITE_SET_BYTES_MAX} bytes"));
            return result;
        }
        let mut question = self.rehearsals.begin();
        let frame = Frame::Rehearse { id: question.id, rehearsal }.encode();
        for link in links {
            if link.is_connected() && self.send_to(&link, Channel::Bulk, frame.clone()) {
                question.was_put_to(link);
            } else {
                is_untried(&link);
                result.untried.push(format!("{}: it cannot be reached", link.region));
            }
        }
        while let Some((link, answer)) = question.next(deadline).await {
            match answer {
                Some(Answer::Fine) => {}
                Some(Answer::Fails(failure)) => {
                    result.failure = Some((link.region.clone(), failure));
                    break;
                }
                untried => {
                    is_untried(&link);
                    let why = match untried {
                        Some(Answer::Untried(why)) => why,
                        _ => "it does not answer".into(),
                    };
                    result.untried.push(format!("{}: {why}", link.region));
                }
            }
        }
        result
    }

    /// Tries the write set for a peer in a task of its own, and answers the peer when that is done.
    pub(super) fn try_for(self: &Arc<Self>, link: Arc<Link>, id: u64, rehearsal: Rehearsal) {
        let transport = self.clone();
        let place = self.rehearsal_places.clone().try_acquire_owned();
        tokio::spawn(async move {
            let answer = match place {
                Ok(_place) => transport.try_here(&rehearsal).await,
                Err(_) => Answer::Untried(format!("{PLACES} rehearsals are running there already")),
            };
            transport.send_to(&link, Channel::Control, Frame::Rehearsed { id, answer }.encode());
        });
    }

    async fn try_here(&self, rehearsal: &Rehearsal) -> Answer {
        let (Some(socket), Some(database)) = (&self.postgres_socket, &self.settings.database) else {
            return Answer::Untried("it runs no PostgreSQL".into());
        };
        let limit = Duration::from_millis(rehearsal.timeout_ms.into()) + ON_TOP;
        let tried = tokio::time::timeout(limit, try_in(socket, database, rehearsal)).await;
        tried.unwrap_or(Answer::Untried("it took too long".into()))
    }
}

/// A connection that breaks may have broken for another reason than the write set, so the write set is tried once more;
/// the second time, the break is its failure.
async fn try_in(socket: &Path, database: &str, rehearsal: &Rehearsal) -> Answer {
    let mut closed = false;
    loop {
        match try_once(socket, database, rehearsal).await {
            Some(Answer::Untried(_)) if closed => {}
            Some(answer) => return answer,
            None if closed => {
                let message = "the server closed the connection twice: it probably crashes".to_string();
                return Answer::Fails(Failure { sqlstate: "XX000".into(), message, ..Default::default() });
            }
            None => closed = true,
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The half of a connection that is read.
struct Heard {
    from: OwnedReadHalf,
    bytes: Arc<AtomicUsize>,
}

impl AsyncRead for Heard {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.from).poll_read(context, buf))?;
        let read = buf.filled().len() - before;
        Poll::Ready(match self.bytes.fetch_add(read, Ordering::Relaxed) + read <= HEARD_BYTES_MAX {
            true => Ok(()),
            false => Err(io::ErrorKind::FileTooLarge.into()),
        })
    }
}

/// `None`: the connection was closed without an error message.
async fn try_once(socket: &Path, database: &str, rehearsal: &Rehearsal) -> Option<Answer> {
    let (client, heard) = match connect(socket, database, rehearsal).await {
        Ok(connected) => connected,
        Err(untried) => return Some(untried),
    };
    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&(rehearsal.base.0 as i64), &&rehearsal.write_set[..]];
    let Err(error) = client.execute("SELECT onetrip.rehearse($1, $2)", &parameters).await else {
        return Some(Answer::Fine);
    };
    if heard.load(Ordering::Relaxed) > HEARD_BYTES_MAX {
        return Some(Answer::Untried(TOO_MUCH.into()));
    }
    let said = error.as_db_error()?;
    // The server knows what has raised the error, and gives a failure of the write set the routine of RAISE.  In the
    // first release only RAISE itself has it.
    if passes(said.code().code()) && said.routine() != Some("exec_stmt_raise") {
        return Some(Answer::Untried(said.message().to_string()));
    }
    Some(match position(&client).await {
        Some(at) => Answer::Fails(failure(at, said)),
        None => Answer::Untried("the server ended".into()),
    })
}

fn failure(at: LogIndex, said: &DbError) -> Failure {
    let text = |t: Option<&str>| t.unwrap_or_default().to_string();
    Failure {
        at,
        sqlstate: said.code().code().to_string(),
        message: said.message().to_string(),
        detail: text(said.detail()),
        hint: text(said.hint()),
        context: text(said.where_()),
    }
}

/// The applied index of that PostgreSQL.
async fn position(client: &Client) -> Option<LogIndex> {
    let row = client.query_one("SELECT onetrip.position()", &[]).await.ok()?;
    row.try_get::<_, i64>(0).ok().map(|at| LogIndex(at as u64))
}

/// Opens a session.  No ALTER ROLE or ALTER DATABASE changes the settings that are given here, and the session ends,
/// whatever it runs, once nobody waits for it any more.  Errors are reported where the COMMIT is, not in this server's
/// log; notices nowhere.  Also returns how much has been read.
async fn connect(socket: &Path, database: &str, rehearsal: &Rehearsal) -> Result<(Client, Arc<AtomicUsize>), Answer> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|e| Answer::Untried(format!("its PostgreSQL does not answer: {e}")))?;
    let (from, to) = stream.into_split();
    let heard = Arc::new(AtomicUsize::new(0));
    let stream = tokio::io::join(Heard { from, bytes: heard.clone() }, to);
    let options = format!(
        "-c statement_timeout={} -c lock_timeout={} -c default_transaction_isolation=read\\ committed \
         -c default_transaction_read_only=off -c session_replication_role=replica -c log_min_messages=fatal \
         -c client_min_messages=error \
         -c role=none -c search_path={SEARCH_PATH} -c session_preload_libraries= -c local_preload_libraries= \
         -c onetrip.read=local -c onetrip.max_staleness=-1 -c client_connection_check_interval=100",
        rehearsal.timeout_ms, rehearsal.lock_timeout_ms
    );
    let mut config = tokio_postgres::Config::new();
    config.user("postgres").dbname(database).application_name("onetrip rehearsal").options(options);
    let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(|e| match e.as_db_error() {
        Some(said) => Answer::Untried(said.message().to_string()),
        None => Answer::Untried(e.to_string()),
    })?;
    // The task ends when the client is dropped.
    tokio::spawn(connection);
    Ok((client, heard))
}

/// Whether this error, of which the server does not say that it is a failure, has nothing to do with what was tried.
fn passes(sqlstate: &str) -> bool {
    matches!(sqlstate.get(..2), Some("40" | "53" | "57" | "58" | "08")) || sqlstate == "55P03"
}

#[cfg(test)]
mod tests {
    use super::*;
    use onetrip_core::LogIndex;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;

    /// Goal: functions in one region cannot fill the memory of another region's node.  Method: a server lets everybody
    /// in, and then sends a notice of 64 MiB.
    #[tokio::test]
    async fn a_notice_of_any_size_is_not_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("server");
        let server = UnixListener::bind(&socket).unwrap();
        let serve = async move {
            let (mut stream, _) = server.accept().await?;
            stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05IN\x04\0\0\x04").await?;
            for _ in 0..64 {
                stream.write_all(&[0; 1 << 20]).await?;
            }
            io::Result::Ok(())
        };
        let serve = tokio::spawn(serve);
        let rehearsal =
            Rehearsal { base: LogIndex(7), timeout_ms: 2000, lock_timeout_ms: 100, write_set: Default::default() };
        let answer = try_once(&socket, "database", &rehearsal).await;
        assert_eq!(answer, Some(Answer::Untried(TOO_MUCH.into())));
        serve.await.unwrap().expect_err("the connection was closed before the end");
    }
}
