//! Tables: plain columns. On a terminal they fit its width; elsewhere nothing is cut.

use comfy_table::presets::NOTHING;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Row, Table, Width};

use super::screen::{Screen, Tint};

/// How a column behaves where room is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Always whole: people copy it.
    Whole,
    /// May be cut, down to this width.
    Cut(u16),
    /// Goes away where room is short; those with a lower number go first.
    Optional(u8),
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// Where room is short.
    pub fit: Fit,
    /// Numbers are read from the right.
    pub is_number: bool,
}

impl Column {
    /// A column of text.
    pub const fn text(name: &'static str, fit: Fit) -> Self {
        Self { name, fit, is_number: false }
    }

    /// A column of numbers.
    pub const fn number(name: &'static str, fit: Fit) -> Self {
        Self { name, fit, is_number: true }
    }
}

/// A field of a row: text that is safe already, and its colour.
pub type Field = (Tint, String);

/// A field without a colour.
pub fn field(text: impl Into<String>) -> Field {
    (Tint::Plain, text.into())
}

/// The width between columns.
const GAP: u16 = 2;

/// The table as text, without a line break at its end.
pub fn render(screen: &Screen, columns: &[Column], rows: Vec<Vec<Field>>, with_header: bool) -> String {
    render_to(columns_of(screen), screen.has_colors(), columns, rows, with_header)
}

/// Like [`render`], for a table inside of a card, which is indented by two.
pub fn render_indented(screen: &Screen, columns: &[Column], rows: Vec<Vec<Field>>, with_header: bool) -> String {
    render_to(columns_of(screen).map(|width| width.saturating_sub(2)), screen.has_colors(), columns, rows, with_header)
}

/// How wide the terminal is. A width that is wider than any needs no cutting.
fn columns_of(screen: &Screen) -> Option<u16> {
    screen.width.map(|width| u16::try_from(width).unwrap_or(u16::MAX))
}

fn render_to(width: Option<u16>, colors: bool, columns: &[Column], rows: Vec<Vec<Field>>, with_header: bool) -> String {
    let mut table = Table::new();
    table.force_no_tty().load_style(NOTHING);
    // Texts are cut where the room ends, not before the word: no text has this character.
    table.set_delimiter('\u{1}');
    table.style_text_only();
    if colors {
        table.enforce_styling();
    }
    if with_header {
        let heading = |column: &Column| Cell::new(column.name.to_uppercase()).add_attribute(Attribute::Bold);
        table.set_header(columns.iter().map(heading));
    }
    for fields in rows {
        let mut row = Row::from(fields.into_iter().map(cell).collect::<Vec<_>>());
        row.max_height(1);
        table.add_row(row);
    }
    table.discover_columns();
    let contents = table.column_max_content_widths();
    let is_shown = width.map_or_else(|| vec![true; columns.len()], |width| shown(width, columns, &contents));
    let last = is_shown.iter().rposition(|is_shown| *is_shown);
    for (index, column) in columns.iter().enumerate() {
        let Some(target) = table.column_mut(index) else { continue };
        target.set_padding((0, if Some(index) == last { 0 } else { GAP }));
        if column.is_number {
            target.set_cell_alignment(CellAlignment::Right);
        }
        if !is_shown[index] {
            target.set_constraint(ColumnConstraint::Hidden);
        }
    }
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        for (index, room) in fitted(width, columns, &contents, &is_shown).into_iter().enumerate() {
            if let (Some(target), Some(room)) = (table.column_mut(index), room) {
                let padding = target.padding_width();
                target.set_constraint(ColumnConstraint::Absolute(Width::Fixed(room + padding)));
            }
        }
    }
    table.trim_fmt()
}

fn cell((tint, text): Field) -> Cell {
    let is_empty = text.is_empty();
    let cell = Cell::new(text);
    match tint {
        _ if is_empty => cell,
        Tint::Plain => cell,
        Tint::Good => cell.fg(Color::DarkGreen),
        Tint::Active => cell.fg(Color::DarkCyan),
        Tint::Warn => cell.fg(Color::DarkYellow),
        Tint::Bad => cell.fg(Color::DarkRed),
        Tint::Dim => cell.add_attribute(Attribute::Dim),
        Tint::Bold => cell.add_attribute(Attribute::Bold),
    }
}

/// Which columns are shown: optional ones go, one by one, until the rest fits.
fn shown(width: u16, columns: &[Column], contents: &[u16]) -> Vec<bool> {
    let mut is_shown = vec![true; columns.len()];
    let least = |is_shown: &[bool]| -> u16 {
        let room = |(index, column): (usize, &Column)| match column.fit {
            Fit::Whole | Fit::Optional(_) => contents[index],
            Fit::Cut(least) => contents[index].min(least),
        };
        let shown = columns.iter().enumerate().filter(|(index, _)| is_shown[*index]);
        shown.map(|shown| room(shown).saturating_add(GAP)).fold(0, u16::saturating_add).saturating_sub(GAP)
    };
    while least(&is_shown) > width {
        let rank = |index: &usize| match columns[*index].fit {
            Fit::Optional(rank) if is_shown[*index] => Some(rank),
            _ => None,
        };
        let Some(index) = (0..columns.len()).filter(|index| rank(index).is_some()).min_by_key(rank) else { break };
        is_shown[index] = false;
    }
    is_shown
}

/// The width of each shown column: what can be cut shares what the others leave, the last one getting the rest.
fn fitted(width: u16, columns: &[Column], contents: &[u16], is_shown: &[bool]) -> Vec<Option<u16>> {
    let mut widths: Vec<Option<u16>> =
        contents.iter().zip(is_shown).map(|(content, is_shown)| is_shown.then_some((*content).max(1))).collect();
    let gaps = GAP.saturating_mul((is_shown.iter().filter(|is_shown| **is_shown).count() as u16).saturating_sub(1));
    // The last columns are notes and the like: they give way first.
    for (index, column) in columns.iter().enumerate().rev() {
        let taken: u16 = widths.iter().flatten().copied().fold(gaps, u16::saturating_add);
        let excess = taken.saturating_sub(width);
        if let (Fit::Cut(least), Some(current)) = (column.fit, widths[index]) {
            widths[index] = Some(current.saturating_sub(excess).max(least.min(current)));
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::text("id", Fit::Whole),
        Column::text("type", Fit::Cut(6)),
        Column::number("attempt", Fit::Optional(1)),
        Column::text("note", Fit::Cut(5)),
    ];

    fn rows() -> Vec<Vec<Field>> {
        let row = ["0123456789-0123456789", "send_email", "1/4", "a note that is rather long"];
        vec![row.into_iter().map(field).collect()]
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        let text = render_to(None, false, &COLUMNS, rows(), true);
        let wanted = "ID                     TYPE        ATTEMPT  NOTE\n0123456789-0123456789  send_email      1/4  a note that is rather long";
        assert_eq!(text, wanted);
    }

    #[test]
    fn what_may_be_cut_is_cut_and_what_is_optional_goes() {
        let text = render_to(Some(60), false, &COLUMNS, rows(), false);
        assert_eq!(text, "0123456789-0123456789  send_email  1/4  a note that is rath…");
        let text = render_to(Some(39), false, &COLUMNS, rows(), false);
        assert!(text.starts_with("0123456789-0123456789  send_ema…  a no…"), "{text}");
        let text = render_to(Some(20), false, &COLUMNS, rows(), false);
        assert!(text.starts_with("0123456789-0123456789  "), "{text}");
    }
}
