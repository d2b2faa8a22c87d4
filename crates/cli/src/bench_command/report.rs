//! What was measured, as a table for people and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::figures::{Figure, Measured, Series, Way};
use super::machine::Machine;
use crate::show::escape::plain;
use crate::show::screen::{Screen, Tint};
use crate::show::table::{Column, Field, Fit, field, render};

/// Everything that there is to say about a benchmark.
#[derive(Debug)]
pub struct Report {
    /// The figures.
    pub measured: Measured,
    /// Where.
    pub machine: Machine,
    /// Synced writes of 4 KiB a second, once per run.
    pub syncs_per_second: Option<Series>,
    /// How much.
    pub settings: Settings,
}

/// How much was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Length of each submit loop.
    pub seconds: f64,
    /// Tasks of the drain.
    pub tasks: u64,
    /// Tasks of the pickup stage.
    pub pickups: u64,
    /// Tasks that the worker ran at once; null is what the SDK does by itself.
    pub concurrency: Option<u32>,
    /// Runs of every stage.
    pub repeat: u32,
    /// The server that was measured, if it was not a private one.
    pub server: Option<String>,
}

/// A figure as JSON has it.
#[derive(Serialize)]
struct Measurement {
    unit: &'static str,
    #[serde(flatten)]
    series: Series,
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    is_debug_build: bool,
    settings: &'a Settings,
    machine: &'a Machine,
    syncs_per_second: &'a Option<Series>,
    #[serde(flatten)]
    ways: BTreeMap<&'static str, BTreeMap<&'static str, Measurement>>,
}

impl Report {
    /// The document.
    pub fn json(&self) -> serde_json::Result<String> {
        let of = |way: Way| {
            let measurement = |figure: &Figure| {
                let series = self.measured.get(way, *figure)?;
                Some((figure.key(), Measurement { unit: figure.unit(), series }))
            };
            (way.name(), Figure::ALL.iter().filter_map(measurement).collect())
        };
        serde_json::to_string_pretty(&Document {
            version: env!("CARGO_PKG_VERSION"),
            is_debug_build: cfg!(debug_assertions),
            settings: &self.settings,
            machine: &self.machine,
            syncs_per_second: &self.syncs_per_second,
            ways: Way::ALL.into_iter().filter(|way| self.measured.has(*way)).map(of).collect(),
        })
    }

    /// The table, and below it what a reader must know to judge it.
    pub fn text(&self, screen: &Screen) -> String {
        let mut text = self.table(screen);
        text.push('\n');
        for (name, value) in self.facts() {
            text.push_str(&format!("\n{}  {value}", screen.tint(Tint::Dim, &format!("{name:<8}"))));
        }
        if cfg!(debug_assertions) {
            let warning = "This is a debug build: its figures say nothing about the speed of a release.";
            text.push_str(&format!("\n\n{}", screen.tint(Tint::Warn, warning)));
        }
        text
    }

    fn table(&self, screen: &Screen) -> String {
        let ways: Vec<Way> = Way::ALL.into_iter().filter(|way| self.measured.has(*way)).collect();
        let mut columns = vec![Column::text("figure", Fit::Whole)];
        columns.extend(ways.iter().map(|way| Column::number(way.name(), Fit::Whole)));
        columns.push(Column::text("unit", Fit::Whole));
        let row = |figure: Figure| -> Option<Vec<Field>> {
            let series: Vec<_> = ways.iter().map(|way| self.measured.get(*way, figure)).collect();
            series.iter().any(Option::is_some).then(|| {
                let mut row = vec![field(figure.title())];
                row.extend(series.iter().map(|series| match series {
                    Some(series) => field(shown(series, figure.digits())),
                    None => (Tint::Dim, "-".to_owned()),
                }));
                row.push((Tint::Dim, figure.unit().to_owned()));
                row
            })
        };
        render(screen, &columns, Figure::ALL.into_iter().filter_map(row).collect(), true)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let Machine { cores, processor, kernel, file_system, folder } = &self.machine;
        let unknown = || "unknown".to_owned();
        let known = |fact: &Option<String>| fact.as_deref().map_or_else(unknown, plain);
        let mut facts = vec![("machine", format!("{cores} cores of {}, {}", known(processor), known(kernel)))];
        match (folder, &self.settings.server) {
            (Some(folder), _) => {
                let syncs = self.syncs_per_second.as_ref().map_or_else(unknown, |syncs| shown(syncs, 0));
                facts.push((
                    "disk",
                    format!("{syncs} synced writes of 4 KiB a second, {} at {}", known(file_system), plain(folder)),
                ));
            }
            (None, Some(server)) => facts.push(("server", format!("{server}, whose disk was not measured"))),
            (None, None) => {}
        }
        let Settings { seconds, tasks, pickups, concurrency, repeat, .. } = &self.settings;
        let at_once =
            concurrency.map_or_else(String::new, |tasks| format!(" at {} at once", grouped(f64::from(tasks), 0)));
        let runs = if *repeat == 1 { String::new() } else { format!("; median (lowest to highest) of {repeat} runs") };
        facts.push((
            "measured",
            format!(
                "loops of {seconds} s, a drain of {} tasks{at_once}, {} pickups, 200 bytes of parameters{runs}",
                grouped(*tasks as f64, 0),
                grouped(*pickups as f64, 0)
            ),
        ));
        let memory = [Figure::MemoryWorker, Figure::MemoryAll];
        if Way::ALL.iter().any(|way| memory.iter().any(|figure| self.measured.get(*way, *figure).is_some())) {
            facts.push(("memory", "largest PSS while draining".to_owned()));
        }
        facts
    }
}

/// A figure for people: the median, and the range if there were several runs.
fn shown(series: &Series, digits: usize) -> String {
    let median = grouped(series.median, digits);
    if series.runs.len() < 2 {
        return median;
    }
    format!("{median} ({} to {})", grouped(series.lowest, digits), grouped(series.highest, digits))
}

/// A number with its thousands set apart.
fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut shown = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::screen::ColorChoice;

    fn report(repeat: u32) -> Report {
        let mut measured = Measured::default();
        for run in 0..repeat {
            measured.add(Way::Http, Figure::SubmitX1, 1_588.4 + f64::from(run));
            measured.add(Way::Embedded, Figure::SubmitX1, 12_345.0);
            measured.add(Way::Http, Figure::MemoryServer, 31.25);
        }
        let machine = Machine {
            cores: 2,
            processor: Some("Some CPU".to_owned()),
            kernel: None,
            file_system: Some("ext4".to_owned()),
            folder: Some("/data".to_owned()),
        };
        let settings = Settings { seconds: 2.0, tasks: 50_000, pickups: 200, concurrency: None, repeat, server: None };
        Report { measured, machine, syncs_per_second: Series::of(vec![4_321.0]), settings }
    }

    #[test]
    fn thousands_are_set_apart() {
        for (value, digits, text) in [
            (0.0, 0, "0"),
            (999.4, 0, "999"),
            (999.6, 0, "1,000"),
            (1_234_567.0, 0, "1,234,567"),
            (12.345, 2, "12.35"),
            (1_234.5, 1, "1,234.5"),
        ] {
            assert_eq!(grouped(value, digits), text);
        }
    }

    #[test]
    fn the_table_has_a_row_per_figure_and_a_column_per_way() {
        let text = report(1).text(&Screen::new(ColorChoice::Never));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "FIGURE           HTTP  EMBEDDED  UNIT");
        assert_eq!(lines[1], "submit x1       1,588    12,345  tasks/s");
        assert_eq!(lines[2], "memory, server   31.2         -  MB");
        assert_eq!(lines[4], "machine   2 cores of Some CPU, unknown");
        assert_eq!(lines[5], "disk      4,321 synced writes of 4 KiB a second, ext4 at /data");
    }

    #[test]
    fn several_runs_have_a_range() {
        let text = report(3).text(&Screen::new(ColorChoice::Never));
        assert!(text.contains("1,589 (1,588 to 1,590)") && text.contains("of 3 runs"), "{text}");
    }

    #[test]
    fn json_has_units_and_every_run() {
        let document: serde_json::Value = serde_json::from_str(&report(3).json().expect("JSON")).expect("JSON");
        let submit = &document["http"]["submit_x1"];
        assert_eq!((submit["unit"].as_str(), submit["runs"].as_array().map(Vec::len)), (Some("tasks/s"), Some(3)));
        assert!(document["embedded"].get("memory_server").is_none());
        assert_eq!(document["machine"]["cores"], 2);
    }
}
