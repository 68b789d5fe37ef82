//! What the pages, and what is installed with the program, tell people to run is a command of this program.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind::{DisplayHelp, DisplayVersion, InvalidSubcommand, UnknownArgument};
use clap::Parser;

use crate::Arguments;

/// What looks like a command and is none: `help` takes a command's name, and the other one is a process of PostgreSQL.
const NO_COMMANDS: [&str; 2] = ["onetrip help COMMAND", "onetrip rehearsal"];

/// A command that a page contains, from the word `onetrip` on.
struct Found {
    words: Vec<String>,
    /// Nothing is left out of it, as may be in a sentence.
    is_whole: bool,
}

/// What may stand before a command on its line.
fn leads_to_command(word: &str) -> bool {
    ["until", "&&", "--", "do"].contains(&word) || word.contains('=')
}

fn is_program(word: &str) -> bool {
    word == "onetrip" || word.ends_with("/onetrip") && !word.contains('=')
}

/// The words of a line, as a shell takes them apart, up to a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        let word = words.last_mut().expect("one at least");
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('#', None) if word.is_empty() => break,
            (';' | '|' | '>' | '<', None) => words.extend([c.to_string(), String::new()]),
            (c, None) if c.is_whitespace() => words.push(String::new()),
            (c, _) => word.push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The commands on a line, each up to what is the shell's own.
fn commands(line: &str) -> Vec<Found> {
    let words = words(line);
    let begins = |at: usize| is_program(&words[at]) && (at == 0 || leads_to_command(&words[at - 1]));
    let ends = |word: &String| ["&", "&&", "|", ">", "<", "2", ";"].contains(&word.as_str());
    let from = |at: usize| Found {
        words: words[at..].iter().take_while(|word| !ends(word)).filter(|word| *word != "...").cloned().collect(),
        is_whole: !words.iter().any(|word| word == "..."),
    };
    // The name alone is the program's, or that of much else.
    (0..words.len()).filter(|at| begins(*at)).map(from).filter(|found| found.words.len() > 1).collect()
}

fn in_file(path: &Path) -> Vec<Found> {
    let text = fs::read_to_string(path).unwrap().replace("\\\n", " ");
    let is_page = path.extension().is_some_and(|e| e == "md");
    let (mut found, mut sentences, mut in_block) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        match line.strip_prefix("ExecStart=") {
            Some(command) => found.extend(commands(command)),
            None if in_block || is_page && line.starts_with("    ") => found.extend(commands(line)),
            None if fence => {}
            None => sentences += &format!("{} ", line.trim_start_matches([' ', '#'])),
        }
    }
    let spans = sentences.split('`').skip(1).step_by(2).flat_map(commands);
    found.extend(spans.map(|command| Found { is_whole: false, ..command }));
    found
}

fn files_in(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => files_in(&entry.path(), files),
            false => files.push(entry.path()),
        }
    }
}

/// Goal: no page tells a reader to run what this program does not know.
/// Method: its own parser reads the commands in blocks, which are whole; of those in sentences it knows the options.
#[test]
fn commands_in_the_pages_are_commands() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    for folder in ["docs", "packaging"] {
        files_in(&root.join(folder), &mut files);
    }
    // What was decided and measured at a time is not changed later.
    let is_of_today =
        |file: &&PathBuf| !["decisions", "measurements"].iter().any(|past| file.iter().any(|f| f == *past));
    let has_text = |file: &&PathBuf| fs::read_to_string(file).is_ok();
    let (mut count, mut wrong) = (0, Vec::new());
    for file in files.iter().filter(is_of_today).filter(has_text) {
        for Found { words, is_whole } in in_file(file) {
            count += 1;
            let command = words.join(" ");
            let Err(e) = Arguments::try_parse_from(&words) else { continue };
            let is_known = [DisplayHelp, DisplayVersion].contains(&e.kind()) || NO_COMMANDS.contains(&command.as_str());
            if !is_known && (is_whole || [UnknownArgument, InvalidSubcommand].contains(&e.kind())) {
                wrong.push(format!("{}: {command}: {e}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 200, "only {count} commands were found");
}

#[test]
fn commands_are_found() {
    let found = |line: &str| commands(line).into_iter().map(|c| (c.words.join(" "), c.is_whole)).collect::<Vec<_>>();
    let one = |command: &str, is_whole| vec![(command.to_string(), is_whole)];
    assert_eq!(
        found("   until bin/onetrip status --data /x; do sleep 1; done"),
        one("bin/onetrip status --data /x", true)
    );
    assert_eq!(found("onetrip start --data x 2>> log &  # \"not\" read"), one("onetrip start --data x", true));
    assert_eq!(found("A=b onetrip init ..."), one("onetrip init", false));
    assert_eq!(found("runuser -u onetrip -- onetrip token --data 'a b' > x"), one("onetrip token --data a b", true));
    assert_eq!(found("data=/var/tmp/onetrip"), []);
    assert_eq!(found("the cluster is upgraded by onetrip upgrade"), []);
}
