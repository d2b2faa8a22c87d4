//! JSON for people: laid out over lines without being parsed into values, so that numbers and the order of names stay
//! as they are.

use std::fmt::Write;

use super::escape::is_hostile;

/// Sound JSON text over several lines. Hostile characters inside of strings are escaped as JSON does it, which leaves
/// the document the same.
pub fn pretty(json: &str) -> String {
    Layout { text: String::with_capacity(json.len() * 2), depth: 0 }.write(json)
}

/// Sound JSON text on one line.
pub fn compact(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for token in tokens(json) {
        push_token(&mut text, token);
        if matches!(token, ":" | ",") {
            text.push(' ');
        }
    }
    text
}

struct Layout {
    text: String,
    depth: usize,
}

impl Layout {
    fn write(mut self, json: &str) -> String {
        let mut tokens = tokens(json).peekable();
        while let Some(token) = tokens.next() {
            match token {
                "{" | "[" if matches!(tokens.peek(), Some(&("}" | "]"))) => {
                    self.text.push_str(token);
                    self.text.push_str(tokens.next().unwrap_or_default());
                }
                "{" | "[" => {
                    self.text.push_str(token);
                    self.depth += 1;
                    self.new_line();
                }
                "}" | "]" => {
                    self.depth = self.depth.saturating_sub(1);
                    self.new_line();
                    self.text.push_str(token);
                }
                "," => {
                    self.text.push(',');
                    self.new_line();
                }
                ":" => self.text.push_str(": "),
                value => push_token(&mut self.text, value),
            }
        }
        self.text
    }

    fn new_line(&mut self) {
        self.text.push('\n');
        for _ in 0..self.depth {
            self.text.push_str("  ");
        }
    }
}

fn push_token(text: &mut String, token: &str) {
    for character in token.chars() {
        if is_hostile(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(character);
        }
    }
}

/// The tokens of sound JSON, each as it is written.
pub fn tokens(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let length = match rest.bytes().next()? {
            b'{' | b'}' | b'[' | b']' | b',' | b':' => 1,
            b'"' => string_length(rest),
            _ => rest.find(['{', '}', '[', ']', ',', ':', '"', ' ', '\t', '\r', '\n']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_the_order_of_names_stay() {
        let json = r#"{"b":12345678901234567890123,"a":[1.10,{"x":[]},{}],"s":"a\"b, {"}"#;
        let wanted = "{\n  \"b\": 12345678901234567890123,\n  \"a\": [\n    1.10,\n    {\n      \"x\": []\n    },\n    {}\n  ],\n  \"s\": \"a\\\"b, {\"\n}";
        assert_eq!(pretty(json), wanted);
        assert_eq!(compact("{ \"a\" : [ 1 ,2 ] }"), r#"{"a": [1, 2]}"#);
    }

    #[test]
    fn hostile_characters_are_escaped_and_the_document_stays_the_same() {
        let json = "[\"\u{9b}31m \u{202e} \u{e0041} ü\"]";
        let laid_out = pretty(json);
        assert!(!laid_out.chars().any(|character| is_hostile(character) && character != '\n'), "{laid_out}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(read(&laid_out), read(json));
    }

    #[test]
    fn it_agrees_with_serde() {
        let value = serde_json::json!({"a": [1, [2.5, null], {"b": "x\\\"y\n", "c": {}}], "d": true, "e": []});
        assert_eq!(pretty(&value.to_string()), serde_json::to_string_pretty(&value).expect("JSON"));
    }
}
