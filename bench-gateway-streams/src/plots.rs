//! Plots beside a report, as SVG: latency over time, percentiles, memory over time, and cost along an axis.
//!
//! What a run did not measure has no plot. It reads a report and draws; it decides nothing.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::report::{Curve, Report};
use crate::sampler::Sample;

const SIZE: (u32, u32) = (960, 540);
const COLORS: [RGBColor; 4] =
    [RGBColor(31, 97, 141), RGBColor(192, 57, 43), RGBColor(126, 126, 126), RGBColor(39, 121, 72)];

/// One axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    words: &'static str,
    scale: Scale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    Logarithmic,
    /// Of a quantile: its distance from 1, by powers of ten.
    Quantile,
}

impl Axis {
    const fn of(words: &'static str, scale: Scale) -> Self {
        Self { words, scale }
    }

    fn place(&self, value: f64) -> Option<f64> {
        let placed = match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.log10(),
            Scale::Quantile => -(1.0 - value).log10(),
        };
        placed.is_finite().then_some(placed)
    }

    fn label(&self, placed: f64) -> String {
        let plain = |value: f64| match value.abs() {
            size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
            size if size >= 1.0 => format!("{value:.1}"),
            _ => format!("{value:.3}"),
        };
        match self.scale {
            Scale::Linear => plain(placed),
            Scale::Logarithmic => plain(10f64.powf(placed)),
            Scale::Quantile => format!("{} %", plain_percent(placed)),
        }
    }
}

fn plain_percent(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 10f64.powf(-nines));
    let digits = (nines - 2.0).ceil().clamp(0.0, 5.0) as usize;
    format!("{percent:.digits$}")
}

struct Line {
    name: String,
    points: Curve,
}

/// Draws what the report has figures for, beside it. Gives the files.
pub(crate) fn of_report(report: &Report, path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let milliseconds = Axis::of("milliseconds", Scale::Logarithmic);
    let seconds = Axis::of("seconds since the measured phase began", Scale::Linear);
    let series = |name: &str, figure: fn(&Sample) -> Option<f64>| Line {
        name: name.to_owned(),
        points: report.series.iter().filter_map(|one| Some((one.at_s, figure(one)?))).collect(),
    };
    let latency = vec![
        series("p50", |one| one.dispatch_p50_ms),
        series("p99", |one| one.dispatch_p99_ms),
        series("max", |one| one.dispatch_max_ms),
    ];
    let mut windows = Vec::new();
    if report.windows.len() > 2 {
        let points = |figure: fn(&crate::latency::Percentiles) -> f64| {
            report.windows.iter().map(|window| (window.from_s, figure(&window.dispatch_ms))).collect()
        };
        windows.push(Line { name: "p50".to_owned(), points: points(|ms| ms.p50) });
        windows.push(Line { name: "p99".to_owned(), points: points(|ms| ms.p99) });
    }
    let curves =
        report.curves.iter().map(|(name, points)| Line { name: (*name).to_owned(), points: points.clone() });
    let mib = |one: &Sample| Some(one.rss_bytes? as f64 / f64::from(1 << 20));
    let title = |what: &str| format!("{}: {what}", report.scenario);
    let plots = [
        ("latency", title("dispatch latency over time"), seconds, milliseconds, latency),
        ("windows", title("dispatch latency by window"), seconds, milliseconds, windows),
        (
            "percentiles",
            title("percentiles"),
            Axis::of("percentile", Scale::Quantile),
            milliseconds,
            curves.collect(),
        ),
        (
            "rss",
            title("the gateway's resident memory over time"),
            seconds,
            Axis::of("MiB", Scale::Linear),
            vec![series("RSS", mib)],
        ),
    ];
    let mut files = Vec::new();
    for (name, title, x, y, lines) in plots {
        files.extend(draw(&beside(path, name), &title, x, y, &lines)?);
    }
    if let Some(growth) = &report.growth {
        let points = growth.points.iter().map(|point| (point.x, point.y)).collect();
        let line = Line { name: growth.measure.to_owned(), points };
        let slope = growth.slope.map_or_else(String::new, |slope| format!(", slope {slope:.3}"));
        let title = format!("growth along {}{slope}", growth.axis);
        let (x, y) =
            (Axis::of(growth.axis, Scale::Logarithmic), Axis::of(growth.measure, Scale::Logarithmic));
        files.extend(draw(&beside(path, "growth"), &title, x, y, &[line])?);
    }
    Ok(files)
}

fn beside(path: &Path, name: &str) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{name}.svg"))
}

/// `None` where there are too few points for a line.
fn draw(path: &Path, title: &str, x: Axis, y: Axis, lines: &[Line]) -> anyhow::Result<Option<PathBuf>> {
    let placed: Vec<(&str, Curve)> = lines
        .iter()
        .map(|line| {
            let points = line.points.iter().filter_map(|(at, value)| Some((x.place(*at)?, y.place(*value)?)));
            (line.name.as_str(), points.collect::<Curve>())
        })
        .filter(|(_, points)| points.len() > 1)
        .collect();
    if placed.is_empty() {
        return Ok(None);
    }
    drawn(path, title, x, y, &placed).map_err(|why| anyhow::anyhow!("drawing {}: {why}", path.display()))?;
    Ok(Some(path.to_owned()))
}

fn drawn(
    path: &Path,
    title: &str,
    x: Axis,
    y: Axis,
    lines: &[(&str, Curve)],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || lines.iter().flat_map(|(_, points)| points);
    let wide = bounds(all().map(|point| point.0), false).ok_or("no points")?;
    let high = bounds(all().map(|point| point.1), y.scale == Scale::Linear).ok_or("no points")?;
    let high = roomy(high, y.scale);
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(wide.0..wide.1, high.0..high.1)?;
    chart
        .configure_mesh()
        .x_desc(x.words)
        .y_desc(y.words)
        .x_labels(10)
        .y_labels(8)
        .x_label_formatter(&|placed| x.label(*placed))
        .y_label_formatter(&|placed| y.label(*placed))
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .draw()?;
    for ((name, points), color) in lines.iter().zip(COLORS.iter().cycle()) {
        let style = color.stroke_width(2);
        let series = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        let color = *color;
        series
            .label(*name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
        if points.len() < 20 {
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    area.present()?;
    Ok(())
}

/// With room for the names of the lines; what hardly changes must not fill the height.
fn roomy((least, most): (f64, f64), scale: Scale) -> (f64, f64) {
    let lacking = match scale {
        Scale::Linear => 0.0,
        Scale::Logarithmic | Scale::Quantile => (1.0 - (most - least)).max(0.0) / 2.0,
    };
    let (least, most) = (least - lacking, most + lacking);
    (least, most + 0.2 * (most - least))
}

/// The least and the greatest, a little apart; from 0 where that is asked for.
fn bounds(values: impl Iterator<Item = f64>, from_zero: bool) -> Option<(f64, f64)> {
    let (least, most) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), one| (least.min(one), most.max(one)));
    if !least.is_finite() || !most.is_finite() {
        return None;
    }
    let room = ((most - least) * 0.05).max(most.abs() * 0.01).max(1e-9);
    Some((if from_zero { 0.0 } else { least - room }, most + room))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latencies;

    #[test]
    fn a_report_with_figures_has_its_plots_and_one_without_has_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.json");
        assert_eq!(of_report(&Report::default(), &path).expect("no plot"), Vec::<PathBuf>::new());
        let mut latencies = Latencies::new();
        (1..5000u64).for_each(|step| latencies.record_ns(step * 10_000));
        let mut report = Report { scenario: "steady", ..Report::default() };
        report.curves.insert("dispatch", latencies.curve());
        report.series = (0..60)
            .map(|at| Sample {
                at_s: f64::from(at),
                rss_bytes: Some(100 << 20),
                cpu_percent: None,
                load_cpu_percent: 0.0,
                connected: 1,
                dispatch_p50_ms: Some(1.0),
                dispatch_p99_ms: Some(2.0 + f64::from(at % 7)),
                dispatch_max_ms: None,
            })
            .collect();
        let files = of_report(&report, &path).expect("plots");
        let names: Vec<String> = files
            .iter()
            .map(|file| file.file_name().unwrap_or_default().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["run-latency.svg", "run-percentiles.svg", "run-rss.svg"]);
        for file in files {
            let text = std::fs::read_to_string(file).expect("a plot");
            assert!(
                text.starts_with("<svg") && text.contains("polyline") && text.contains("steady:"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_percentile_is_named_with_the_digits_that_tell_it_from_the_next() {
        let axis = Axis::of("percentile", Scale::Quantile);
        let place = |quantile| axis.label(axis.place(quantile).expect("a place"));
        assert_eq!(
            (place(0.9).as_str(), place(0.99).as_str(), place(0.999).as_str()),
            ("90 %", "99 %", "99.9 %")
        );
    }
}
