//! Tables as text, for people to read.

/// Aligns the columns: the first `left` of them to the left, the others (numbers) to the right.  The first line is the
/// header.
pub fn render(lines: &[Vec<String>], left: usize) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| lines.iter().filter_map(|l| l.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            shown += &if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            shown += "  ";
        }
        text += shown.trim_end();
        text.push('\n');
        if number == 0 {
            text += &widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>().join("  ");
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let lines = [vec!["region".into(), "n".into()], vec!["a".into(), "100".into()]];
        assert_eq!(render(&lines, 1), "region    n\n------  ---\na       100\n");
    }
}
