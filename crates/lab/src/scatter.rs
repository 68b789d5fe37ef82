//! A scatter plot of latencies over time, as a small SVG file that reads well on light and on dark pages.
//!
//! There is one panel for each question, with axes of its own, and each panel shows some series of points. Invariant:
//! of each series the slowest hundredth is drawn, up to [`SLOW_MAX`] points; of the other points at most [`OTHERS_MAX`]
//! are drawn, evenly over time.

use anyhow::{anyhow, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::pgbench::Commit;

const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 220;
const HEAD_HEIGHT: u32 = 32;
const SLOW_MAX: usize = 500;
const OTHERS_MAX: usize = 250;
/// Neither white nor black: the plot has no background, so its colours must be visible on any page.
const TEXT: RGBColor = RGBColor(0x7a, 0x7f, 0x86);
const COLOURS: [RGBColor; 3] = [RGBColor(0x2a, 0x8b, 0xd8), RGBColor(0xd9, 0x73, 0x0d), RGBColor(0x2f, 0x9e, 0x44)];

pub struct Panel {
    pub title: String,
    /// A line that no point can be below.
    pub limit_ms: f64,
    /// The series at the same place in this list have the same colour in every panel.
    pub series: Vec<Series>,
}

pub struct Series {
    pub name: String,
    pub commits: Vec<Commit>,
}

/// The points to draw, in order of time.
fn drawn(commits: &[Commit]) -> Vec<Commit> {
    let mut by_latency = commits.to_vec();
    by_latency.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let slow = commits.len().div_ceil(100).min(SLOW_MAX);
    let mut others = by_latency.split_off(slow);
    others.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    let step = others.len().div_ceil(OTHERS_MAX).max(1);
    let mut drawn = by_latency;
    drawn.extend(others.into_iter().step_by(step));
    drawn.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    drawn
}

pub fn svg(panels: &[Panel]) -> Result<String> {
    let mut text = String::new();
    let height = PANEL_HEIGHT * u32::try_from(panels.len())?;
    let drawing = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
    for (panel, area) in panels.iter().zip(drawing.split_evenly((panels.len(), 1))) {
        // The library's errors contain the drawing, so only their text is passed on.
        draw(panel, &area).map_err(|error| anyhow!("draw {}: {error}", panel.title))?;
    }
    drawing.present().map_err(|error| anyhow!("finish the scatter: {error}"))?;
    drop(drawing);
    // The outline that every point repeats would be half of the file.
    Ok(text.replace(r#" stroke="none" stroke-width="1""#, "").replace(r#" opacity="1""#, ""))
}

fn draw<B: DrawingBackend>(panel: &Panel, area: &DrawingArea<B, Shift>) -> Result<(), String> {
    let commits = || panel.series.iter().flat_map(|series| &series.commits);
    let greatest = |value: fn(&Commit) -> f64| commits().map(value).fold(0.0, f64::max);
    let (end_s, slowest_ms) = (greatest(|c| c.at_s).max(1.0), greatest(|c| c.ms).max(panel.limit_ms));
    let failed = |error: DrawingAreaErrorKind<B::ErrorType>| error.to_string();
    head(panel, area).map_err(failed)?;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_top(HEAD_HEIGHT)
        .x_label_area_size(22)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end_s, 0.0..slowest_ms * 1.08)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .axis_style(TEXT)
        .bold_line_style(TEXT.mix(0.3))
        .light_line_style(TEXT.mix(0.0))
        .label_style(text(12))
        .y_labels(5)
        .x_label_formatter(&|s| format!("{s:.0} s"))
        .y_label_formatter(&|ms| format!("{ms:.0} ms"))
        .draw()
        .map_err(failed)?;
    let limit = [(0.0, panel.limit_ms), (end_s, panel.limit_ms)];
    chart.draw_series([PathElement::new(limit, TEXT)]).map_err(failed)?;
    for (series, colour) in panel.series.iter().zip(COLOURS) {
        let points = drawn(&series.commits).into_iter().map(|c| Circle::new((c.at_s, c.ms), 2, colour.filled()));
        chart.draw_series(points).map_err(failed)?;
    }
    Ok(())
}

/// Draws the title above the points, and which series each colour is.
fn head<B: DrawingBackend>(
    panel: &Panel,
    area: &DrawingArea<B, Shift>,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let title = format!("{} (line: limit, {:.0} ms)", panel.title, panel.limit_ms);
    area.draw(&Text::new(title, (64, 8), text(15)))?;
    for ((series, colour), x) in panel.series.iter().zip(COLOURS).zip((460..).step_by(170)) {
        area.draw(&Circle::new((x, 14), 4, colour.filled()))?;
        area.draw(&Text::new(series.name.clone(), (x + 9, 8), text(13)))?;
    }
    Ok(())
}

fn text(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commits(count: usize, slow_every: usize) -> Vec<Commit> {
        let ms = |i: usize| if i % slow_every == 0 { 50.0 + i as f64 / 1e4 } else { 11.0 };
        (0..count).map(|i| Commit { at_s: i as f64 / 1e3, ms: ms(i) }).collect()
    }

    #[test]
    fn every_slow_point_is_drawn_and_the_others_are_thinned() {
        let drawn = drawn(&commits(20_000, 100));
        assert_eq!(drawn.iter().filter(|c| c.ms > 11.0).count(), 200);
        assert!(drawn.len() > 300 && drawn.len() <= SLOW_MAX + OTHERS_MAX, "{} points", drawn.len());
        assert!(drawn.windows(2).all(|pair| pair[0].at_s <= pair[1].at_s));
    }

    #[test]
    fn a_series_as_long_as_a_day_stays_small() {
        let drawn = drawn(&commits(1_000_000, 50));
        assert!(drawn.len() <= SLOW_MAX + OTHERS_MAX, "{} points", drawn.len());
        let slowest = commits(1_000_000, 50).iter().map(|c| c.ms).fold(0.0, f64::max);
        assert!(drawn.iter().any(|c| c.ms == slowest), "the slowest of all is there");
        assert!(super::drawn(&[]).is_empty());
    }

    #[test]
    fn the_file_has_each_panel_and_no_background() {
        let panel = |title: &str| Panel {
            title: title.into(),
            limit_ms: 10.0,
            series: vec![Series { name: "Onetrip".into(), commits: commits(2_000, 100) }],
        };
        let svg = svg(&[panel("us-east-1"), panel("us-west-2")]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for expected in ["us-east-1", "us-west-2", "Onetrip", "limit, 10 ms", "20 ms"] {
            assert!(svg.contains(expected), "{expected}");
        }
        assert!(svg.len() < 60_000, "{} bytes", svg.len());
        assert!(!svg.contains("#FFFFFF") && !svg.contains("#000000"), "a colour that vanishes on some page");
    }
}
