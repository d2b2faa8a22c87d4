//! One pass over a body before it is parsed: refuses what JSON allows and Windlass does not.
//!
//! Payloads are carried as text and never decoded, so nobody else would notice a number
//! that no reader can hold or a nesting that overflows a reader's stack.

use windlass_core::limits;

/// Why a body is refused, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not UTF-8.
    NotUtf8(usize),
    /// More levels than allowed.
    TooDeep(usize),
    /// A number beyond 64-bit floats.
    HugeNumber(usize),
    /// Half of a surrogate pair.
    LoneSurrogate(usize),
    /// `\u0000`, which many databases cannot store.
    Nul(usize),
}

/// Looks for what is refused. Says nothing about whether the text is JSON at all.
pub fn scan(bytes: &[u8]) -> Result<&str, Refusal> {
    let text = std::str::from_utf8(bytes).map_err(|error| Refusal::NotUtf8(error.valid_up_to()))?;
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = skip_string(bytes, at)?,
            b'[' | b'{' => {
                depth += 1;
                if depth > limits::JSON_DEPTH {
                    return Err(Refusal::TooDeep(at));
                }
                at += 1;
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            b'0'..=b'9' => at = skip_number(text, at)?,
            _ => at += 1,
        }
    }
    Ok(text)
}

/// The byte after the string that begins at `start`.
fn skip_string(bytes: &[u8], start: usize) -> Result<usize, Refusal> {
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' if bytes.get(at + 1) == Some(&b'u') => at = check_escape(bytes, at)?,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Ok(at)
}

/// The byte after the `\uXXXX` escape (or pair of them) at `start`.
fn check_escape(bytes: &[u8], start: usize) -> Result<usize, Refusal> {
    match escaped_unit(bytes, start) {
        // Not four hex digits: the parser will say so.
        None => Ok(start + 2),
        Some(0) => Err(Refusal::Nul(start)),
        Some(0xd800..=0xdbff) => match escaped_unit(bytes, start + 6) {
            Some(0xdc00..=0xdfff) => Ok(start + 12),
            _ => Err(Refusal::LoneSurrogate(start)),
        },
        Some(0xdc00..=0xdfff) => Err(Refusal::LoneSurrogate(start)),
        Some(_) => Ok(start + 6),
    }
}

fn escaped_unit(bytes: &[u8], start: usize) -> Option<u16> {
    let digits = bytes.get(start..start + 6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0u16, |unit, &digit| {
        let value = char::from(digit).to_digit(16)?;
        Some(unit << 4 | value as u16)
    })
}

/// The byte after the number that has a digit at `start`.
fn skip_number(text: &str, start: usize) -> Result<usize, Refusal> {
    // Fewer digits than this without an exponent are always within a float.
    const SURELY_FINITE_BYTES: usize = 300;
    let rest = &text.as_bytes()[start..];
    let is_part = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    let length = rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len());
    let number = &text[start..start + length];
    let may_be_huge = length > SURELY_FINITE_BYTES || number.bytes().any(|byte| matches!(byte, b'e' | b'E'));
    if may_be_huge && number.parse::<f64>().is_ok_and(f64::is_infinite) {
        return Err(Refusal::HugeNumber(start));
    }
    Ok(start + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_and_where() {
        for (body, expected) in [
            (&b"{\"a\":\"\xff\"}"[..], Refusal::NotUtf8(6)),
            (b"[1e400]", Refusal::HugeNumber(1)),
            (b"[-1e400]", Refusal::HugeNumber(2)),
            (br#"["\ud800"]"#, Refusal::LoneSurrogate(2)),
            (br#"["\ud800\u0041"]"#, Refusal::LoneSurrogate(2)),
            (br#"["\udc00"]"#, Refusal::LoneSurrogate(2)),
            (br#"["a\u0000"]"#, Refusal::Nul(3)),
        ] {
            assert_eq!(scan(body), Err(expected), "{}", String::from_utf8_lossy(body));
        }
        let many_digits = format!("[{}]", "9".repeat(400));
        assert_eq!(scan(many_digits.as_bytes()), Err(Refusal::HugeNumber(1)));
        let deep = "[".repeat(10_000);
        assert_eq!(scan(deep.as_bytes()), Err(Refusal::TooDeep(limits::JSON_DEPTH)));
    }

    #[test]
    fn what_is_let_through() {
        for body in [
            r#"{"a":"\ud83d\ude00 1e400 [[[ \\u0000 \"","b":1e300,"c":-0.5e-400}"#,
            r#""\\""#,
            "\"unfinished",
            "\"\\u12",
            "]]]",
            "",
        ] {
            assert_eq!(scan(body.as_bytes()), Ok(body));
        }
        let deep = format!("{}{}", "[".repeat(limits::JSON_DEPTH), "]".repeat(limits::JSON_DEPTH));
        assert!(scan(deep.as_bytes()).is_ok());
    }
}
