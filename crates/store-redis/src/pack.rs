//! Bytes of rows: numbers of variable length, texts with their length before them.

use windlass_core::time::Timestamp;

use crate::error::Damaged;

/// Writes.
#[derive(Default)]
pub(crate) struct Packer(pub(crate) Vec<u8>);

impl Packer {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Seven bits to a byte, the lowest first.
    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Small either way from zero is short.
    pub(crate) fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    pub(crate) fn time(&mut self, time: Timestamp) {
        self.signed(time.as_micros());
    }

    /// A time close to another.
    pub(crate) fn time_near(&mut self, time: Timestamp, other: Timestamp) {
        self.signed(time.as_micros().wrapping_sub(other.as_micros()));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Everything up to the end.
    pub(crate) fn rest(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Reads.
pub(crate) struct Unpacker<'a>(pub(crate) &'a [u8]);

impl<'a> Unpacker<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Damaged> {
        let (first, rest) = self.0.split_first().ok_or_else(|| Damaged::new("it is cut off"))?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Damaged> {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f).checked_shl(shift).ok_or_else(|| Damaged::new("a number is too long"))?;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    pub(crate) fn small(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.number()?).map_err(Damaged::new)
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Damaged> {
        let number = self.number()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, Damaged> {
        self.signed().map(Timestamp::from_micros)
    }

    pub(crate) fn time_near(&mut self, other: Timestamp) -> Result<Timestamp, Damaged> {
        Ok(Timestamp::from_micros(other.as_micros().wrapping_add(self.signed()?)))
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| Damaged::new("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let length = self.number()? as usize;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, Damaged> {
        std::str::from_utf8(self.bytes()?).map_err(Damaged::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_out_again() {
        let mut packer = Packer::default();
        for number in [0, 1, 127, 128, 300, u64::MAX] {
            packer.number(number);
        }
        for number in [0, -1, 1, i64::MIN, i64::MAX] {
            packer.signed(number);
        }
        packer.bytes(b"text");
        packer.time_near(Timestamp::from_micros(5), Timestamp::from_micros(9));
        let mut unpacker = Unpacker(&packer.0);
        for number in [0, 1, 127, 128, 300, u64::MAX] {
            assert_eq!(unpacker.number(), Ok(number));
        }
        for number in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unpacker.signed(), Ok(number));
        }
        assert_eq!(unpacker.text(), Ok("text"));
        assert_eq!(unpacker.time_near(Timestamp::from_micros(9)), Ok(Timestamp::from_micros(5)));
        assert!(unpacker.byte().is_err());
        assert!(Unpacker(&[0xff; 12]).number().is_err());
    }
}
