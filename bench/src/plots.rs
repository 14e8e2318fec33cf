//! The plots of a report folder, SVG by plotters.

use crate::report::{ParityRow, RecallRow};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

const SIZE: (u32, u32) = (960, 480);
/// Errors below this share of the bound are drawn at it: a log axis has no zero.
const FLOOR: f64 = 1e-4;

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("plot: {error}"))
}

/// Error over bound of every case, one series per device, log scale; the line at 1 is the bound.
pub fn error_by_case(rows: &[ParityRow], path: &Path) -> io::Result<()> {
    let mut cases: Vec<(&str, &str)> = rows.iter().map(|r| (r.operation.as_str(), r.case.as_str())).collect();
    cases.sort_unstable();
    cases.dedup();
    let mut devices: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        let key = (row.operation.as_str(), row.case.as_str());
        let x = cases.binary_search(&key).map_err(|_| failed("a case is missing from the axis"))?;
        let y = if row.error_over_bound.is_nan() { 10.0 } else { row.error_over_bound.clamp(FLOOR, 10.0) };
        devices.entry(&row.device).or_default().push((x as f64, y));
    }
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&root)
        .caption("error / bound by case (1 = the bound)", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.5..cases.len() as f64 - 0.5, (FLOOR..10.0).log_scale())
        .map_err(failed)?;
    // Cases are many: the axis shows where each operation begins.
    let label = |x: &f64| {
        let at = x.round() as usize;
        match cases.get(at) {
            Some((operation, _)) => (*operation).to_owned(),
            None => String::new(),
        }
    };
    chart
        .configure_mesh()
        .x_labels(8)
        .x_label_formatter(&label)
        .y_desc("largest error / bound")
        .draw()
        .map_err(failed)?;
    let bound = [(-0.5, 1.0), (cases.len() as f64 - 0.5, 1.0)];
    chart.draw_series(LineSeries::new(bound, RED.stroke_width(2))).map_err(failed)?;
    for (number, (device, points)) in devices.into_iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        chart
            .draw_series(points.into_iter().map(|point| Circle::new(point, 3, color.filled())))
            .map_err(failed)?
            .label(device)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, color.filled()));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw().map_err(failed)?;
    root.present().map_err(failed)
}

/// Recall of the exact top-512 over the number of index rows, one line per format, log2 axis.
pub fn recall(rows: &[RecallRow], path: &Path) -> io::Result<()> {
    let mut formats: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        formats.entry(&row.format).or_default().push((f64::from(row.rows), row.recall));
    }
    let least = rows.iter().map(|r| r.recall).fold(1.0, f64::min);
    let (first, last) =
        rows.iter().fold((f64::MAX, 1.0), |(a, b): (f64, f64), r| (a.min(f64::from(r.rows)), b.max(f64::from(r.rows))));
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let bottom = (least - 0.01).max(0.0);
    let mut chart = ChartBuilder::on(&root)
        .caption("recall of the exact top-512 by index-K format", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((first * 0.9..last * 1.1).log_scale().base(2.0), bottom..1.002)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("index rows in the context")
        .y_desc("recall@512")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .draw()
        .map_err(failed)?;
    for (number, (format, mut points)) in formats.into_iter().enumerate() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let color = Palette99::pick(number).to_rgba();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))
            .map_err(failed)?
            .label(format)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(failed)?;
    root.present().map_err(failed)
}

/// Groups of bars from 0, one group per label, one bar per series.
pub fn bars(caption: &str, y: &str, series: &[&str], groups: &[(String, Vec<f64>)], path: &Path) -> io::Result<()> {
    let most = groups.iter().flat_map(|(_, values)| values).copied().fold(0.0, f64::max).max(1e-9);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.5..groups.len() as f64 - 0.5, 0.0..most * 1.1)
        .map_err(failed)?;
    let label = |x: &f64| {
        let at = x.round();
        let near = (x - at).abs() < 1e-6 && at >= 0.0;
        near.then(|| groups.get(at as usize)).flatten().map(|(name, _)| name.clone()).unwrap_or_default()
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * groups.len() + 1)
        .x_label_formatter(&label)
        .y_desc(y)
        .draw()
        .map_err(failed)?;
    let width = 0.8 / series.len().max(1) as f64;
    for (number, name) in series.iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let bar = |(group, (_, values)): (usize, &(String, Vec<f64>))| {
            let left = group as f64 - 0.4 + number as f64 * width;
            Rectangle::new([(left, 0.0), (left + 0.92 * width, values[number])], color.filled())
        };
        chart
            .draw_series(groups.iter().enumerate().map(bar))
            .map_err(failed)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], color.filled()));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw().map_err(failed)?;
    root.present().map_err(failed)
}
