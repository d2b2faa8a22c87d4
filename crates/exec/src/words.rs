//! Splits a command line into words like a shell, without expanding anything: no variables, globs or pipes.

use crate::error::ParseError;

/// Quotes and backslashes mean what they mean to `sh`: nothing is special in `'…'`; in `"…"` a backslash escapes `"`, `\`,
/// `$`, `` ` `` and a newline and is itself elsewhere.
pub(crate) fn split(command: &str) -> Result<Vec<String>, ParseError> {
    let mut words = Vec::new();
    // None between words: '' is a word, and space is not.
    let mut word: Option<String> = None;
    let mut characters = command.chars().zip(1..);
    while let Some((character, at)) = characters.next() {
        match character {
            '\0' => return Err(ParseError::Nul { at }),
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' | '"' => quoted(character, at, &mut characters, word.get_or_insert_default())?,
            '\\' => match characters.next() {
                None => return Err(ParseError::TrailingBackslash),
                Some(('\0', at)) => return Err(ParseError::Nul { at }),
                Some(('\n', _)) => {}
                Some((escaped, _)) => word.get_or_insert_default().push(escaped),
            },
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    if words.is_empty() { Err(ParseError::Empty) } else { Ok(words) }
}

fn quoted(
    quote: char,
    opened_at: usize,
    characters: &mut impl Iterator<Item = (char, usize)>,
    word: &mut String,
) -> Result<(), ParseError> {
    let unclosed = ParseError::UnclosedQuote { quote, at: opened_at };
    loop {
        match characters.next() {
            None => return Err(unclosed),
            Some(('\0', at)) => return Err(ParseError::Nul { at }),
            Some((character, _)) if character == quote => return Ok(()),
            Some(('\\', _)) if quote == '"' => match characters.next() {
                None => return Err(unclosed),
                Some(('\0', at)) => return Err(ParseError::Nul { at }),
                Some(('\n', _)) => {}
                Some((escaped @ ('"' | '\\' | '$' | '`'), _)) => word.push(escaped),
                Some((plain, _)) => word.extend(['\\', plain]),
            },
            Some((plain, _)) => word.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_like_a_shell_does() {
        for (command, expected) in [
            ("true", vec!["true"]),
            ("  ./resize.sh \t --fast\n", vec!["./resize.sh", "--fast"]),
            ("./resize.sh --fast 'a b'", vec!["./resize.sh", "--fast", "a b"]),
            (r#"a "b c"d'e'"#, vec!["a", "b cde"]),
            (r#"a '' """#, vec!["a", "", ""]),
            (r"a\ b \\ \'", vec!["a b", r"\", "'"]),
            (r#""\"\\\$\`\n""#, vec![r#""\$`\n"#]),
            (r"'\n$HOME*'", vec![r"\n$HOME*"]),
            ("a\\\nb", vec!["ab"]),
            ("é 'ü ö'", vec!["é", "ü ö"]),
        ] {
            assert_eq!(split(command).unwrap(), expected, "{command}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_command_is_said() {
        for (command, expected) in [
            ("", ParseError::Empty),
            (" \t\n", ParseError::Empty),
            ("a 'b", ParseError::UnclosedQuote { quote: '\'', at: 3 }),
            ("a \"b\\\"", ParseError::UnclosedQuote { quote: '"', at: 3 }),
            ("\"a\\", ParseError::UnclosedQuote { quote: '"', at: 1 }),
            ("a\\", ParseError::TrailingBackslash),
            ("a\0b", ParseError::Nul { at: 2 }),
            ("'a\0b'", ParseError::Nul { at: 3 }),
        ] {
            assert_eq!(split(command), Err(expected), "{command:?}");
        }
    }
}
