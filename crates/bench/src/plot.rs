//! Plots as SVG: samples over some categories. A mark is the median, a bar goes from the smallest sample to the largest, dots are all
//! samples. Text is left to whoever shows the picture: no font is needed to draw it.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::metric::Summary;

const WIDTH: u32 = 1_000;
/// Of the plot itself, with its axes.
const HEIGHT: u32 = 440;
/// Right of the plot.
const LEGEND: u32 = 230;
const LINE: u32 = 17;
/// Characters of a line of text below and above the plot.
const CHARACTERS: usize = 150;
/// As a reader who does not see all colours tells them apart (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
];

/// What is drawn.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Under which conditions.
    pub conditions: String,
    /// What the categories are, with their unit.
    pub x: String,
    /// What the values are, with their unit.
    pub y: String,
    /// From left to right.
    pub categories: Vec<String>,
    /// Where equal ways are to be equal factors: the least value, at which smaller ones are drawn.
    pub logarithmic_from: Option<f64>,
    /// Drawn one beside the other.
    pub series: Vec<Series>,
    /// Values that others have reported, or that are aimed at.
    pub lines: Vec<(f64, String)>,
    /// Said below.
    pub notes: Vec<String>,
}

/// Some of the values.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Each with the number of its category.
    pub points: Vec<(usize, Summary)>,
    /// Whether medians are joined: where categories are steps of one quantity.
    pub is_joined: bool,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Places, RangedCoordf64>>;

/// The axis of so many categories: category n stands at n.
struct Places(usize);

impl Ranged for Places {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * (value + 0.5) / self.0 as f64).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _hint: H) -> Vec<f64> {
        (0..self.0).map(|at| at as f64).collect()
    }

    fn range(&self) -> Range<f64> {
        -0.5..self.0 as f64 - 0.5
    }
}

impl Chart {
    /// The picture.
    pub fn to_svg(&self) -> anyhow::Result<String> {
        let conditions = wrapped(&self.conditions);
        let notes: Vec<String> = self.notes.iter().flat_map(|note| wrapped(note)).collect();
        let above = 40 + LINE * conditions.len() as u32;
        let below = 12 + LINE * notes.len() as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (WIDTH, above + HEIGHT + below)).into_drawing_area();
            root.fill(&WHITE)?;
            root.draw(&Text::new(self.title.clone(), (16, 12), ("sans-serif", 20)))?;
            say(&root, &conditions, 38)?;
            say(&root, &notes, (above + HEIGHT + 4) as i32)?;
            let middle = root.margin(above, below, 0, 0);
            let (plot, legend) = middle.split_horizontally(WIDTH - LEGEND);
            self.draw_plot(&plot)?;
            self.draw_legend(&legend)?;
            root.present()?;
        }
        Ok(svg)
    }

    fn draw_plot(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let (low, high) = self.range();
        let count = self.categories.len();
        let mut plot = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(52)
            .y_label_area_size(72)
            .build_cartesian_2d(Places(count), low..high)?;
        let category = |at: &f64| self.categories.get(at.round() as usize).cloned().unwrap_or_default();
        let is_logarithmic = self.logarithmic_from.is_some();
        let value = |value: &f64| number(if is_logarithmic { 10_f64.powf(*value) } else { *value });
        plot.configure_mesh()
            .disable_x_mesh()
            .x_label_formatter(&category)
            .y_label_formatter(&value)
            .y_labels(if is_logarithmic { (high - low).round() as usize + 1 } else { 9 })
            .y_max_light_lines(0)
            .x_desc(&self.x)
            .y_desc(&self.y)
            .label_style(("sans-serif", 13))
            .draw()?;
        for (at, (value, _)) in self.lines.iter().enumerate() {
            let ends = [(-0.5, self.place(*value)), (count as f64 - 0.5, self.place(*value))];
            plot.draw_series(DashedLineSeries::new(ends, 6, 4, line_colour(at).stroke_width(2)))?;
        }
        for (at, series) in self.series.iter().enumerate() {
            self.draw_series(&mut plot, at, series)?;
        }
        Ok(())
    }

    fn draw_series(&self, plot: &mut Plot<'_, '_>, number: usize, series: &Series) -> anyhow::Result<()> {
        let colour = COLOURS[number % COLOURS.len()];
        let beside = (number as f64 - (self.series.len() as f64 - 1.0) / 2.0) * 0.5 / self.series.len() as f64;
        let points: Vec<_> = series.points.iter().filter(|(_, found)| found.median.is_finite()).collect();
        let middle = |(at, found): &&(usize, Summary)| (*at as f64 + beside, self.place(found.median));
        if series.is_joined {
            plot.draw_series(LineSeries::new(points.iter().map(middle), colour.mix(0.5).stroke_width(1)))?;
        }
        for (at, found) in points.iter().copied() {
            let x = *at as f64 + beside;
            let ends =
                [found.min, found.max].map(|end| (x, self.place(if end.is_finite() { end } else { found.median })));
            plot.draw_series([PathElement::new(ends, colour.stroke_width(2))])?;
            let samples = found.samples.iter().copied().filter(|value| value.is_finite());
            let dot = |value| Circle::new((x + 0.04, self.place(value)), 2, colour.mix(0.6).filled());
            plot.draw_series(samples.map(dot))?;
        }
        let mark = |point| Circle::new(middle(point), 4, colour.filled());
        plot.draw_series(points.iter().map(mark))?;
        Ok(())
    }

    fn draw_legend(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let mut y = 20;
        for (at, series) in self.series.iter().enumerate() {
            area.draw(&Circle::new((8, y), 4, COLOURS[at % COLOURS.len()].filled()))?;
            area.draw(&Text::new(series.name.clone(), (20, y - 7), ("sans-serif", 13)))?;
            y += LINE as i32 + 4;
        }
        for (at, (_, name)) in self.lines.iter().enumerate() {
            area.draw(&PathElement::new([(2, y), (14, y)], line_colour(at).stroke_width(2)))?;
            area.draw(&Text::new(name.clone(), (20, y - 7), ("sans-serif", 13)))?;
            y += LINE as i32 + 4;
        }
        Ok(())
    }

    /// Of the axis; nought is on it unless it is logarithmic.
    fn range(&self) -> (f64, f64) {
        let found = self.series.iter().flat_map(|series| &series.points).flat_map(|(_, found)| [found.min, found.max]);
        let values: Vec<f64> = found.chain(self.lines.iter().map(|(value, _)| *value)).collect();
        let shown = values.into_iter().filter(|value| value.is_finite()).map(|value| self.place(value));
        let (low, high) = shown.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        match () {
            () if low > high => (0.0, 1.0),
            () if self.logarithmic_from.is_some() => (low.floor(), high.ceil().max(low.floor() + 1.0)),
            () => (low.min(0.0) * 1.08, if high > 0.0 { high * 1.08 } else { 1.0 }),
        }
    }

    fn place(&self, value: f64) -> f64 {
        self.logarithmic_from.map_or(value, |least| value.max(least).log10())
    }
}

fn line_colour(at: usize) -> RGBColor {
    [RGBColor(90, 90, 90), RGBColor(150, 150, 150)][at % 2]
}

fn say(area: &Area<'_>, lines: &[String], from: i32) -> anyhow::Result<()> {
    for (number, line) in lines.iter().enumerate() {
        area.draw(&Text::new(line.clone(), (16, from + LINE as i32 * number as i32), ("sans-serif", 13)))?;
    }
    Ok(())
}

/// Without digits that say nothing.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 10.0 || large == large.round() => format!("{value:.0}"),
        middle if middle >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        match lines[last].len() {
            0 => lines[last] = word.to_owned(),
            length if length + word.len() < CHARACTERS => lines[last] = format!("{} {word}", lines[last]),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.retain(|line| !line.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(samples: &[f64]) -> Chart {
        let points = vec![(1, Summary::of(samples, "ns").expect("samples"))];
        Chart {
            title: "cost & more".into(),
            x: "sessions".into(),
            y: "ns".into(),
            categories: vec!["1".into(), "1,000".into()],
            series: vec![Series { name: "uplink".into(), points, is_joined: true }],
            lines: vec![(50.0, "an aim".into())],
            notes: vec!["nothing else ran".into()],
            ..Chart::default()
        }
    }

    #[test]
    fn a_picture_has_marks_axes_and_what_is_said() {
        let svg = chart(&[40.0, 42.0, 60.0]).to_svg().expect("a picture");
        for text in ["cost &amp; more", "sessions", "uplink", "1,000", "an aim", "nothing else ran"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // The median, the three samples, and the legend's.
        assert_eq!(svg.matches("<circle").count(), 5);
    }

    #[test]
    fn what_is_larger_stands_higher() {
        let heights = |logarithmic_from| {
            let svg = Chart { logarithmic_from, ..chart(&[10.0, 1_000.0]) }.to_svg().expect("a picture");
            let of = |circle: &str| circle.split("cy=\"").nth(1)?.split('"').next()?.parse::<i32>().ok();
            svg.split("<circle").skip(1).filter_map(of).collect::<Vec<_>>()
        };
        // In the order in which they are drawn: the samples, then the median.
        let linear = heights(None);
        assert!(linear[1] < linear[0], "{linear:?}");
        // From 10 to 1,000 the middle of the logarithmic axis is 100.
        let logarithmic = heights(Some(0.1));
        assert!(logarithmic[1] < logarithmic[2] && logarithmic[2] < logarithmic[0], "{logarithmic:?}");
    }

    #[test]
    fn what_never_happened_is_not_drawn() {
        let svg = chart(&[f64::INFINITY]).to_svg().expect("a picture");
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn long_text_goes_over_several_lines() {
        let lines = wrapped(&"word ".repeat(100));
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= CHARACTERS));
        assert!(wrapped("").is_empty());
    }
}
