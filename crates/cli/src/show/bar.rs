//! Progress bars: on standard error, on terminals only, and only for what takes longer than a second.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::screen::Screen;

/// What is quicker needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// A bar that shows up late.
pub struct Bar {
    drawing: ProgressBar,
    begun: Instant,
    is_shown: bool,
    may_show: bool,
}

impl Bar {
    /// A bar over this many things; without a number it turns instead.
    pub fn new(screen: &Screen, length: Option<u64>, unit: &str) -> Self {
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
        let template = match length {
            Some(_) => format!("{{bar:30}} {{human_pos}}/{{human_len}} {unit} {{msg}}"),
            None if unit.is_empty() => "{spinner} {msg}".to_owned(),
            None => format!("{{spinner}} {{human_pos}} {unit} {{msg}}"),
        };
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        Self { drawing: bar, begun: Instant::now(), is_shown: false, may_show: screen.err_is_terminal }
    }

    /// Moves to a position.
    pub fn set(&mut self, position: u64) {
        self.show();
        self.drawing.set_position(position);
    }

    /// Says what is going on; the text must be safe already.
    pub fn say(&mut self, message: String) {
        self.show();
        self.drawing.set_message(message);
        self.drawing.tick();
    }

    fn show(&mut self) {
        if self.may_show && !self.is_shown && self.begun.elapsed() >= PATIENCE {
            self.drawing.set_draw_target(ProgressDrawTarget::stderr());
            self.is_shown = true;
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.drawing.finish_and_clear();
    }
}

/// A bar of text, for cards: `━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌`.
pub fn drawn(percent: f64) -> String {
    const WIDTH: usize = 20;
    let full = ((percent.clamp(0.0, 100.0) / 100.0 * WIDTH as f64).round() as usize).min(WIDTH);
    format!("{}{}", "━".repeat(full), "╌".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::drawn;

    #[test]
    fn bars_have_one_length() {
        for percent in [-5.0, 0.0, 33.3, 50.0, 99.9, 100.0, 1e9, f64::NAN] {
            assert_eq!(drawn(percent).chars().count(), 20, "{percent}");
        }
        assert_eq!(drawn(50.0), "━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌");
    }
}
