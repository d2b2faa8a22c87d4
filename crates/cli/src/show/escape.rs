//! Text from users, made safe to show. A terminal obeys control characters, so a task's error message could otherwise
//! recolour, overwrite or reorder what an operator reads.

use std::fmt::Write;

/// Whether a terminal or a reader could be misled by it: control characters, and marks that reorder or hide text.
pub fn is_hostile(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line of text: line breaks and whatever is hostile are shown escaped.
pub fn plain(text: &str) -> String {
    escaped(text, |_| false)
}

/// Text of several lines, such as a stack trace: line breaks and tabs stay.
pub fn plain_lines(text: &str) -> String {
    escaped(&text.replace("\r\n", "\n"), |character| matches!(character, '\n' | '\t'))
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hostile(character) && !keep(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// A number of things: `1 task`, `2 tasks`.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A text as one part of a path or a query: whatever is not plain is escaped.
pub fn url_part(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut part, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':') {
            part.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(part, "%{byte:02X}");
        }
        part
    })
}

/// A path with its query; values that are not there are left out.
pub fn with_query<'a>(path: &str, query: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let mut url = path.to_owned();
    let given = query.into_iter().filter_map(|(name, value)| Some((name, value?)));
    for (index, (name, value)) in given.enumerate() {
        url.push(if index == 0 { '?' } else { '&' });
        url.push_str(name);
        url.push('=');
        url.push_str(&url_part(&value));
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_shown_and_not_obeyed() {
        for (text, shown) in [
            ("plain text, Grüße, 日本", "plain text, Grüße, 日本"),
            ("\x1b[31mred\x1b[0m", "\\u{1b}[31mred\\u{1b}[0m"),
            ("two\nlines\r\t", "two\\nlines\\r\\t"),
            ("\u{9b}31m \u{7f}", "\\u{9b}31m \\u{7f}"),
            ("evil\u{202e}txt.exe", "evil\\u{202e}txt.exe"),
            ("zero\u{200b}width", "zero\\u{200b}width"),
            ("tag\u{e0041}", "tag\\u{e0041}"),
        ] {
            assert_eq!(plain(text), shown);
        }
        assert_eq!(plain_lines("a\r\n\tb\x1b"), "a\n\tb\\u{1b}");
    }

    #[test]
    fn urls_carry_any_text() {
        assert_eq!(url_part("a b/ü?&=%"), "a%20b%2F%C3%BC%3F%26%3D%25");
        let query = [("q", Some("x y".to_owned())), ("queue", None), ("tag", Some("k:v".to_owned()))];
        assert_eq!(with_query("/api", query), "/api?q=x%20y&tag=k:v");
        assert_eq!(with_query("/api", []), "/api");
    }
}
