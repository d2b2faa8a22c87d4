//! Prepared changes of one tag: the keys they touch and what is done to them, as the scripts
//! take them.

use std::collections::HashMap;

use crate::error::Damaged;
use crate::pack::{Packer, Unpacker};

/// Arguments of one operation. Lua can put only so many on its stack.
const ARGUMENTS: usize = 3_000;

/// Prepared changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sheet {
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<Vec<u8>>,
    numbers: HashMap<String, usize>,
}

/// A number as the scripts take it.
pub(crate) fn text(number: impl std::fmt::Display) -> Vec<u8> {
    number.to_string().into_bytes()
}

impl Sheet {
    pub(crate) fn is_empty(&self) -> bool {
        self.args.is_empty()
    }

    /// The number of a key among those of the sheet, counted from one.
    pub(crate) fn number(&mut self, key: String) -> usize {
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        self.keys.push(key.clone());
        self.numbers.insert(key, self.keys.len());
        self.keys.len()
    }

    /// One operation.
    pub(crate) fn add(&mut self, op: &str, key: String, args: impl IntoIterator<Item = Vec<u8>>) {
        let number = self.number(key);
        self.args.extend([op.as_bytes().to_vec(), text(number), Vec::new()]);
        let first = self.args.len();
        self.args.extend(args);
        let count = self.args.len() - first;
        self.args[first - 1] = text(count);
    }

    /// An operation on many items of `width` arguments each, in as many steps as it takes.
    pub(crate) fn add_many(&mut self, op: &str, key: &str, head: Option<usize>, items: Vec<Vec<u8>>, width: usize) {
        let mut items = items.into_iter();
        let step = ARGUMENTS / width * width;
        while items.len() > 0 {
            let head = head.map(text);
            self.add(op, key.to_owned(), head.into_iter().chain(items.by_ref().take(step)));
        }
    }

    /// Bytes for the log, for whoever has to carry it out if we cannot.
    pub(crate) fn pack(&self) -> Vec<u8> {
        let bytes: usize = self.args.iter().map(|arg| arg.len() + 3).sum();
        let mut packer = Packer(Vec::with_capacity(bytes + 64 * self.keys.len()));
        packer.number(self.keys.len() as u64);
        for key in &self.keys {
            packer.bytes(key.as_bytes());
        }
        packer.number(self.args.len() as u64);
        for arg in &self.args {
            packer.bytes(arg);
        }
        packer.0
    }

    /// A sheet from the log.
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut rest = Unpacker(bytes);
        let mut sheet = Self::default();
        for _ in 0..rest.number()? {
            sheet.number(rest.text()?.to_owned());
        }
        for _ in 0..rest.number()? {
            sheet.args.push(rest.bytes()?.to_vec());
        }
        Ok(sheet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_survives_the_log() {
        let mut sheet = Sheet::default();
        sheet.add("HSET", "a".into(), [b"f".to_vec(), vec![0, 255]]);
        sheet.add("DEL", "b".into(), []);
        sheet.add("HDEL", "a".into(), [b"g".to_vec()]);
        assert_eq!(sheet.keys, ["a", "b"]);
        assert_eq!(Sheet::unpack(&sheet.pack()), Ok(sheet));
    }

    #[test]
    fn long_lists_go_in_steps_that_keep_pairs_together() {
        let mut sheet = Sheet::default();
        sheet.add_many("HSET", "a", None, vec![b"x".to_vec(); 7_000], 2);
        let counts: Vec<&[u8]> =
            sheet.args.iter().filter(|arg| arg.len() == 4 && arg[0] != b'H').map(Vec::as_slice).collect();
        assert_eq!(counts, [b"3000", b"3000", b"1000"]);
    }
}
