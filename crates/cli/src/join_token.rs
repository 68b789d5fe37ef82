//! The token that `onetrip join` is given.  It is a secret, and every user of a machine can list command lines; so it
//! may come from a file or from the environment, and does not stay on the command line of a node that runs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{stdin, BufRead, BufReader, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use onetrip_client::complain;
use onetrip_node::join::JoinToken;

use crate::BadUsage;

const VARIABLE: &str = "ONETRIP_TOKEN";
const OPTION: &str = "--token";
/// More than any token has.
const LINE_BYTES_MAX: u64 = 4096;

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct GivenToken {
    /// File whose first line is what `onetrip token` printed; `-` is standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// What `onetrip token` printed; others on this machine may see it on the command line
    #[arg(long, env = VARIABLE, hide_env_values = true)]
    token: Option<String>,
}

impl GivenToken {
    /// To be called while this process has one thread and is still its caller's user.
    pub fn take(&self) -> Result<JoinToken> {
        let token = self.read()?;
        leave_command_line();
        // The programs that the node runs have no use for it.
        std::env::remove_var(VARIABLE);
        Ok(token)
    }

    fn read(&self) -> Result<JoinToken> {
        let (text, from) = match &self.token_file {
            Some(file) => {
                let line =
                    first_line(file, "token").with_context(|| format!("read the token from {}", file.display()))?;
                (line, format!("--token-file {}", file.display()))
            }
            None => (self.token.clone().unwrap_or_default(), OPTION.to_string()),
        };
        Ok(text.parse::<JoinToken>().map_err(|e| BadUsage(format!("{from}: {e}")))?)
    }
}

/// The first line of a file with a secret; `-` is standard input.
pub fn first_line(file: &Path, what: &str) -> std::io::Result<String> {
    let from: Box<dyn Read> = match file == Path::new("-") {
        true => {
            if stdin().is_terminal() {
                onetrip_client::out::error_text(format_args!("{what}: "));
                return hidden_line();
            }
            Box::new(stdin())
        }
        false => Box::new(File::open(file)?),
    };
    let mut line = String::new();
    BufReader::new(from.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(line)
}

/// A line from the terminal, which does not show it.
fn hidden_line() -> std::io::Result<String> {
    use nix::sys::termios::{tcgetattr, tcsetattr, LocalFlags, SetArg};
    let shown = tcgetattr(stdin())?;
    let mut hidden = shown.clone();
    hidden.local_flags.remove(LocalFlags::ECHO);
    tcsetattr(stdin(), SetArg::TCSANOW, &hidden)?;
    let mut line = String::new();
    let read = BufReader::new(stdin().take(LINE_BYTES_MAX)).read_line(&mut line);
    tcsetattr(stdin(), SetArg::TCSANOW, &shown)?;
    complain!("");
    read.map(|_| line)
}

/// If this process's command line contains the token, executes the program anew in this process with the token in its
/// environment instead, which only the process's user and root can read.
fn leave_command_line() {
    let mut command_line = std::env::args_os();
    let name = command_line.next().unwrap_or_default();
    let (args, Some(token)) = without_token(command_line) else { return };
    let why = match std::env::current_exe() {
        Ok(program) => Command::new(program).arg0(name).args(args).env(VARIABLE, token).exec(),
        Err(why) => why,
    };
    complain!("onetrip: the token stays on this process's command line: {why}");
}

fn without_token(mut args: impl Iterator<Item = OsString>) -> (Vec<OsString>, Option<OsString>) {
    let (mut others, mut token) = (Vec::new(), None);
    while let Some(arg) = args.next() {
        let value = arg.as_bytes().strip_prefix(OPTION.as_bytes());
        match value.map(|value| value.split_first()) {
            Some(None) => token = args.next(),
            Some(Some((b'=', value))) => token = Some(OsStr::from_bytes(value).to_os_string()),
            _ => others.push(arg),
        }
    }
    (others, token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Call {
        #[command(flatten)]
        token: GivenToken,
    }

    const TEXT: &str = "onetrip-join-1.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.plain";

    fn given(args: &[&str]) -> Result<JoinToken, String> {
        let call = Call::try_parse_from([&["join"], args].concat()).map_err(|e| e.to_string())?;
        call.token.read().map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn a_token_comes_from_a_file_or_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let path = file.to_str().unwrap();
        assert!(given(&["--token-file", path]).unwrap_err().contains("read the token from"));
        for text in [TEXT.to_string(), format!("{TEXT}\n"), format!("  {TEXT} \r\nmore\n")] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(given(&["--token-file", path]), Ok(TEXT.parse().unwrap()));
        }
        std::fs::write(&file, format!("\n{TEXT}")).unwrap();
        let why = given(&["--token-file", path]).unwrap_err();
        assert!(why.contains(&format!("--token-file {path}: not a token")), "{why}");
        assert_eq!(given(&["--token", TEXT]), Ok(TEXT.parse().unwrap()));
        assert!(given(&["--token", "x"]).unwrap_err().contains("--token: not a token"));
        assert!(given(&["--token", TEXT, "--token-file", path]).unwrap_err().contains("cannot be used with"));
        assert!(given(&[]).unwrap_err().contains("--token-file"));
    }

    #[test]
    fn the_token_is_taken_off_the_command_line_and_nothing_else() {
        let split = |args: &[&str]| {
            let (others, token) = without_token(args.iter().map(OsString::from));
            (others.join(OsStr::new(" ")).into_string().unwrap(), token.map(|t| t.into_string().unwrap()))
        };
        let others = "join --from a:1 --region r".to_string();
        assert_eq!(
            split(&["join", "--from", "a:1", "--token", "T", "--region", "r"]),
            (others.clone(), Some("T".into()))
        );
        assert_eq!(split(&["join", "--from", "a:1", "--region", "r", "--token=T"]), (others.clone(), Some("T".into())));
        assert_eq!(split(&["join", "--from", "a:1", "--region", "r"]), (others, None));
        let file = ["join", "--token-file", "T", "--token-file=T"];
        assert_eq!(split(&file), (file.join(" "), None));
    }
}
