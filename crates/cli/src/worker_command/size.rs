//! Sizes as people write them: `512MB`, `1.5GiB`.

const UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

/// No program starts in less: a smaller limit is a forgotten unit.
const LEAST: u64 = 1_000_000;

/// Reads a size in bytes: a number with its unit.
pub fn parse(text: &str) -> Result<u64, String> {
    let bytes = read(text).ok_or("must be a size such as 512MB, 2GB or 1.5GiB")?;
    if bytes >= LEAST { Ok(bytes) } else { Err("must be at least 1MB".to_owned()) }
}

fn read(text: &str) -> Option<u64> {
    let number_length = text.find(|character: char| !character.is_ascii_digit() && character != '.')?;
    let (number, unit) = text.split_at(number_length);
    let (_, size) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let bytes = number.parse::<f64>().ok()? * *size as f64;
    (bytes <= u64::MAX as f64).then_some(bytes as u64)
}

/// A size for people, in the largest decimal unit that leaves something before the point.
pub fn shown(bytes: u64) -> String {
    for (unit, size) in [("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)] {
        if bytes >= size {
            let tenths = bytes / (size / 10);
            return if tenths.is_multiple_of(10) || tenths >= 1_000 {
                format!("{} {unit}", tenths / 10)
            } else {
                format!("{}.{} {unit}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("512MB", 512_000_000),
            ("512mb", 512_000_000),
            ("1.5GiB", 1_610_612_736),
            ("2000KB", 2_000_000),
            ("1048576B", 1_048_576),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "512", "MB", "512 MB", "-1GB", "1.2.3GB", "5TB", "1e9B"] {
            assert!(parse(text).expect_err(text).contains("must be a size"), "{text}");
        }
        assert_eq!(parse("512KB"), Err("must be at least 1MB".to_owned()));
    }

    #[test]
    fn sizes_are_shown() {
        let table = [(999, "999 B"), (64_000_000, "64 MB"), (1_610_612_736, "1.6 GB"), (612_999_999, "612 MB")];
        for (bytes, text) in table {
            assert_eq!(shown(bytes), text);
        }
    }
}
