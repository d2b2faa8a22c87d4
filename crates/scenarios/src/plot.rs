//! Lines over time as a small SVG picture that needs nothing else.

use std::fmt::Write;

/// One line.
pub struct Line {
    /// What it shows.
    pub name: &'static str,
    /// Its colour.
    pub colour: &'static str,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 34.0;

/// The picture.
pub fn svg(title: &str, x_name: &str, y_name: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x_max = all().map(|(x, _)| *x).fold(1e-9, f64::max);
    // A little air above the highest line.
    let y_max = round_up(all().map(|(_, y)| *y * 1.05).fold(1e-9, f64::max));
    let x = |value: f64| LEFT + value / x_max * (WIDTH - LEFT - 20.0);
    let y = |value: f64| HEIGHT - BOTTOM - value / y_max * (HEIGHT - BOTTOM - TOP);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"16\" font-size=\"14\">{title}</text>\n"
    );
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let (value_y, value_x) = (y_max * share, x_max * share);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            WIDTH - 20.0,
            y(value_y),
            y(value_y),
            LEFT - 6.0,
            y(value_y) + 4.0,
            short(value_y),
            x(value_x),
            HEIGHT - BOTTOM + 16.0,
            short(value_x),
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let points: Vec<String> =
            line.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
        let legend = LEFT + 150.0 * index as f64;
        let _ = writeln!(
            text,
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\
             <rect x=\"{legend}\" y=\"23\" width=\"10\" height=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"29\">{}</text>",
            line.colour,
            points.join(" "),
            line.colour,
            legend + 14.0,
            line.name,
        );
    }
    let _ = write!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_name}</text>\n\
         <text x=\"14\" y=\"{:.1}\" transform=\"rotate(-90 14 {:.1})\" text-anchor=\"middle\">{y_name}</text>\n</svg>\n",
        WIDTH / 2.0,
        HEIGHT - 6.0,
        HEIGHT / 2.0,
        HEIGHT / 2.0,
    );
    text
}

fn short(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{}", (value * 100.0).round() / 100.0) }
}

/// The next of 1, 2, 2.5, 5, 10 … at or above the value.
fn round_up(value: f64) -> f64 {
    let magnitude = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * magnitude).find(|step| *step >= value).unwrap_or(value)
}
