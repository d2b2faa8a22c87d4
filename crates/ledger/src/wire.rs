//! A compact form for what nodes tell each other: numbers in as few bytes as they need.

/// Bytes that do not hold what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an entry of the log cannot be read: it is damaged, or of a newer version of Windlass")]
pub struct Damaged;

/// Writes values one after another.
#[derive(Debug, Default)]
pub(crate) struct Encoder(Vec<u8>);

impl Encoder {
    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Small differences of either sign are short.
    pub(crate) fn signed(&mut self, value: i64) {
        self.number(((value << 1) ^ (value >> 63)) as u64);
    }

    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn array(&mut self, value: [u8; 16]) {
        self.0.extend(value);
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.0.extend(value);
    }

    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => {
                self.byte(1);
                write(self, value);
            }
            None => self.byte(0),
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads them again.
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Damaged> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Damaged> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damaged> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damaged)
    }

    pub(crate) fn small(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.number()?).map_err(|_| Damaged)
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Damaged> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn float(&mut self) -> Result<f64, Damaged> {
        Ok(f64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Damaged)?))
    }

    pub(crate) fn array(&mut self) -> Result<[u8; 16], Damaged> {
        self.take(16)?.try_into().map_err(|_| Damaged)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let count = usize::try_from(self.number()?).map_err(|_| Damaged)?;
        self.take(count)
    }

    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Damaged>,
    ) -> Result<Option<T>, Damaged> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// A list with its length before it. The length is not believed: a damaged one must not fill the memory.
    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, Damaged>) -> Result<Vec<T>, Damaged> {
        let count = self.number()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self)?);
        }
        Ok(items)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(numbers: Vec<u64>, signed: Vec<i64>, bytes: Vec<u8>, float: f64) {
            let mut encoder = Encoder::default();
            encoder.number(numbers.len() as u64);
            for number in &numbers {
                encoder.number(*number);
            }
            encoder.number(signed.len() as u64);
            for number in &signed {
                encoder.signed(*number);
            }
            encoder.bytes(&bytes);
            encoder.float(float);
            let written = encoder.into_bytes();
            let mut decoder = Decoder::new(&written);
            prop_assert_eq!(decoder.list(Decoder::number), Ok(numbers));
            prop_assert_eq!(decoder.list(Decoder::signed), Ok(signed));
            prop_assert_eq!(decoder.bytes(), Ok(&bytes[..]));
            prop_assert_eq!(decoder.float().map(f64::to_bits), Ok(float.to_bits()));
            prop_assert!(decoder.is_empty());
        }

        #[test]
        fn damaged_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
            let mut decoder = Decoder::new(&bytes);
            let _ = decoder.list(Decoder::bytes);
            let _ = decoder.optional(Decoder::signed);
        }
    }
}
