//! Charts as SVG, drawn by plotters. Colours are names for what they mean: the page's style sheet gives each its value
//! in light and dark, by the fixed colours that stand here.

use mcpmill_core::text::{clipped, shown};
use plotters::{
    coord::ranged1d::{Ranged, ValueFormatter},
    prelude::*,
};

use super::{funnel::Step, scores::Histogram, timeline::Point};

/// A chart that cannot be drawn.
pub type ChartError = Box<dyn std::error::Error>;

/// Width of a chart in its own units. Narrow, so that its text can be read on a phone, where it fills the page.
const WIDTH: u32 = 380;
const TEXT: u32 = 17;

/// Colours and the variables of the style sheet that take their place.
pub const COLOURS: [(RGBColor, &str); 6] =
    [(INK, "--ink"), (FAINT, "--faint"), (KEPT, "--kept"), (DROPPED, "--dropped"), (OPEN, "--open"), (MARK, "--mark")];
const INK: RGBColor = RGBColor(1, 1, 1);
const FAINT: RGBColor = RGBColor(2, 2, 2);
const KEPT: RGBColor = RGBColor(3, 3, 3);
const DROPPED: RGBColor = RGBColor(4, 4, 4);
const OPEN: RGBColor = RGBColor(5, 5, 5);
const MARK: RGBColor = RGBColor(6, 6, 6);

fn text(colour: &RGBColor) -> TextStyle<'_> {
    ("sans-serif", TEXT).into_font().color(colour)
}

/// Bars, one below the other, of steps of one unit: each with its count and its share of the first.
pub fn bars(steps: &[Step]) -> Result<String, ChartError> {
    const ROW: u32 = 44;
    let first = steps.first().map_or(1, |step| step.count.max(1));
    let most = steps.iter().map(|step| step.count).max().unwrap_or(1).max(1);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, ROW * steps.len().max(1) as u32)).into_drawing_area();
        for (step, row) in steps.iter().zip(root.split_evenly((steps.len().max(1), 1))) {
            let share = 100.0 * step.count as f64 / first as f64;
            let what = shown(&step.what, 52);
            row.draw_text(&what, &text(&INK), (0, 2))?;
            // Room is left beside the longest bar for its count.
            let wide = (f64::from(WIDTH - 110) * step.count as f64 / most as f64).round() as i32;
            row.draw(&Rectangle::new([(0, 22), (wide.max(1), 38)], KEPT.filled()))?;
            row.draw_text(&format!("{} · {share:.0} %", step.count), &text(&INK), (wide + 6, 23))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// Columns of scores: kept, dropped and unjudged on top of each other, thresholds drawn across.
pub fn histogram(histogram: &Histogram) -> Result<String, ChartError> {
    let Histogram { low, width, columns, thresholds, .. } = histogram;
    let high = low + width * columns.len() as f64;
    let top = columns.iter().map(|column| column.iter().sum::<u64>()).max().unwrap_or(1).max(1) as f64 * 1.08;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 220)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(6)
            .margin_right(14)
            .x_label_area_size(24)
            .y_label_area_size(48)
            .build_cartesian_2d(*low..high, 0.0..top)?;
        let digits = |x: &f64| if *width >= 1.0 { format!("{x:.0}") } else { format!("{x:.2}") };
        mesh(&mut chart, &digits, &|y: &f64| format!("{y:.0}"))?;
        for (at, column) in columns.iter().enumerate() {
            let left = low + width * at as f64;
            let mut below = 0.0;
            for (count, colour) in column.iter().zip([KEPT, DROPPED, OPEN]).filter(|(count, _)| **count > 0) {
                let above = below + *count as f64;
                let corners = [(left + 0.06 * width, below), (left + 0.94 * width, above)];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                below = above;
            }
        }
        for threshold in thresholds {
            chart.draw_series([PathElement::new([(*threshold, 0.0), (*threshold, top)], MARK.stroke_width(2))])?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// A line of what was used against the time that was worked, and the unit of that time.
pub fn line(points: &[Point], of: impl Fn(&Point) -> f64, what: &str) -> Result<(&'static str, String), ChartError> {
    let most = |number: &dyn Fn(&Point) -> f64| points.iter().map(number).fold(0.0, f64::max).max(1e-9);
    let worked = most(&|point| point.seconds);
    let (unit, seconds) = match worked {
        worked if worked < 300.0 => ("seconds", 1.0),
        worked if worked < 18_000.0 => ("minutes", 60.0),
        _ => ("hours", 3600.0),
    };
    let (end, top) = (worked / seconds, most(&|point| of(point)) * 1.05);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, 220)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(6)
            .margin_right(20)
            .x_label_area_size(24)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        let time = |x: &f64| if end < 6.0 { format!("{x:.1}") } else { format!("{x:.0}") };
        mesh(&mut chart, &time, &|y: &f64| short(*y))?;
        let drawn = std::iter::once((0.0, 0.0)).chain(points.iter().map(|point| (point.seconds / seconds, of(point))));
        chart.draw_series(LineSeries::new(drawn, KEPT.stroke_width(2)))?;
        root.draw_text(&clipped(what, 20), &text(&FAINT), (70, 8))?;
        root.present()?;
    }
    Ok((unit, svg))
}

fn mesh<DB, X, Y>(
    chart: &mut ChartContext<'_, DB, Cartesian2d<X, Y>>,
    x: &dyn Fn(&X::ValueType) -> String,
    y: &dyn Fn(&Y::ValueType) -> String,
) -> Result<(), ChartError>
where
    DB: DrawingBackend,
    DB::ErrorType: 'static,
    X: Ranged + ValueFormatter<X::ValueType>,
    Y: Ranged + ValueFormatter<Y::ValueType>,
{
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT.mix(0.35))
        .axis_style(FAINT)
        .x_labels(6)
        .y_labels(4)
        .x_label_formatter(&x)
        .y_label_formatter(&y)
        .label_style(text(&INK))
        .draw()?;
    Ok(())
}

/// A number as `950`, `12 k`, `3.4 M`, `0.02`.
fn short(number: f64) -> String {
    match number {
        0.0 => "0".into(),
        n if n < 1.0 => format!("{n:.2}"),
        n if n < 10_000.0 => format!("{n:.0}"),
        n if n < 1e6 => format!("{:.0} k", n / 1e3),
        n => format!("{:.1} M", n / 1e6),
    }
}
