//! Bytes that releases before this one have written or sent (`testdata/formats`), and how the tests read them.
//!
//! Each file has lines of a name, a blank and hexadecimal digits.  ONETRIP_NEW_FORMATS=1 has files of the present
//! formats written anew; those of earlier ones are never written again.

use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats").join(name)
}

/// What the file has, in its order.
pub fn read(name: &str) -> Vec<(String, Vec<u8>)> {
    let file = file(name);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let line = |line: &str| {
        let (name, digits) = line.rsplit_once(' ').expect("a name, a blank and digits");
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (name.to_owned(), (0..digits.len()).step_by(2).map(byte).collect())
    };
    text.lines().map(line).collect()
}

/// Fails unless the file has exactly these bytes: a format has changed without a new version of it.
pub fn compare(name: &str, now: &[(String, Vec<u8>)]) {
    if std::env::var_os("ONETRIP_NEW_FORMATS").is_some() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let lines: String = now.iter().map(|(name, bytes)| format!("{name} {}\n", hex(bytes))).collect();
        std::fs::write(file(name), lines).unwrap();
    }
    let stored = read(name);
    let names = |all: &[(String, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&stored), names(now), "{name}");
    for ((what, then), (_, now)) in stored.iter().zip(now) {
        assert_eq!(then, now, "{what} in testdata/formats/{name} has changed: earlier releases cannot read it");
    }
}
