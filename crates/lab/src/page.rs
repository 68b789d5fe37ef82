//! Pages of figures that a program writes and people add to: blocks between marks, and paragraphs broken into lines.
//!
//! A block is the text between `<!-- NAME -->` and `<!-- /NAME -->`, each alone on its line.

use anyhow::{ensure, Context, Result};

/// The longest line of a page that scripts/lint-docs.sh allows.
const LINE_MAX: usize = 100;

/// Where the block's text begins and ends.
fn bounds(text: &str, name: &str) -> Option<(usize, usize)> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->\n"));
    let start = text.find(&open)? + open.len();
    let end = start + text[start..].find(&close)?;
    Some((start, end))
}

/// The text in the block; `None`: there is no such block.
pub fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (start, end) = bounds(text, name)?;
    Some(&text[start..end])
}

/// A block with its marks.
pub fn marked(name: &str, content: &str) -> String {
    format!("<!-- {name} -->\n{content}<!-- /{name} -->\n")
}

/// The text, with the content of this block replaced; the block must be there exactly once.
pub fn with_block(text: &str, name: &str, content: &str) -> Result<String> {
    let (start, end) =
        bounds(text, name).with_context(|| format!("there is no <!-- {name} --> ... <!-- /{name} -->"))?;
    ensure!(bounds(&text[end..], name).is_none(), "there are two blocks {name}");
    Ok(format!("{}{content}{}", &text[..start], &text[end..]))
}

/// One paragraph, broken into lines that a page may have.
pub fn paragraph(text: &str) -> String {
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > LINE_MAX {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines += word;
        length += word_length;
    }
    lines.push('\n');
    lines
}

/// A table in Markdown; the first line is its head.
pub fn table(lines: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        text += &format!("| {} |\n", line.join(" | "));
        if number == 0 {
            text += &format!("|{}\n", "---|".repeat(line.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_replaced_and_the_rest_stays() {
        let page = format!("before\n{}after\n", marked("figures", "old\n"));
        assert_eq!(block(&page, "figures"), Some("old\n"));
        let newer = with_block(&page, "figures", "new\nlines\n").unwrap();
        assert_eq!(newer, format!("before\n{}after\n", marked("figures", "new\nlines\n")));
    }

    #[test]
    fn a_page_without_the_block_or_with_two_is_left_alone() {
        assert_eq!(block("text\n<!-- figures -->\n", "figures"), None);
        assert!(with_block("text\n", "figures", "").is_err());
        let one = marked("figures", "");
        assert!(with_block(&(one.clone() + &one), "figures", "").is_err());
    }

    #[test]
    fn paragraphs_fit_into_the_lines_of_a_page() {
        let text = paragraph(&"four ".repeat(50));
        assert!(text.lines().all(|line| line.len() <= LINE_MAX) && text.lines().count() == 3, "{text}");
        assert_eq!(paragraph("a\n  b"), "a b\n");
    }

    #[test]
    fn tables_have_a_head() {
        let line = |cells: [&str; 2]| cells.map(String::from).to_vec();
        assert_eq!(table(&[line(["a", "b"]), line(["1", "2"])]), "| a | b |\n|---|---|\n| 1 | 2 |\n");
    }
}
