//! Text of others, for people to read.

/// The text without what moves a terminal's cursor.  Its lines stay lines.
pub fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// The same as part of a line: further lines of it are indented, so that none can be taken for one of ours.
pub fn printable_part(text: &str) -> String {
    printable(text).replace('\n', "\n    ")
}
