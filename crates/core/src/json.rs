//! JSON that is carried as text and never re-encoded.

use std::fmt;
use std::hash::Hasher;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use siphasher::sip::SipHasher13;

/// A JSON document as its sender wrote it.
#[derive(Clone)]
pub struct Json(Box<RawValue>);

impl Json {
    /// The empty object, what a task without parameters has.
    pub fn empty_object() -> Self {
        Self::from_text("{}".to_owned()).unwrap_or_else(|_| Self::null())
    }

    /// `null`.
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// Takes a text that must be JSON.
    pub fn from_text(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(Self)
    }

    /// Encodes a value.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// Length of the text in bytes.
    pub fn len(&self) -> usize {
        self.as_str().len()
    }

    /// Never: a JSON text has at least one character.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// A digest that is the same for documents that differ only in white space and the order of keys.
    pub fn canonical_digest(&self) -> u64 {
        // Parsed objects are sorted maps, so writing them out again is canonical.
        let canonical = serde_json::from_str::<serde_json::Value>(self.as_str()).map(|value| value.to_string());
        digest(canonical.as_deref().unwrap_or(self.as_str()).as_bytes())
    }
}

/// A fixed 64-bit digest of some bytes, the same in every process and version.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x5769_6e64, 0x6c61_7373);
    hasher.write(bytes);
    hasher.finish()
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Json {}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_digest_ignores_space_and_key_order_only() {
        let digest_of = |text: &str| Json::from_text(text.to_owned()).expect("valid").canonical_digest();
        assert_eq!(digest_of(r#"{"a":1,"b":[1,2]}"#), digest_of(r#"{ "b": [1, 2], "a": 1 }"#));
        assert_ne!(digest_of(r#"{"a":1}"#), digest_of(r#"{"a":2}"#));
        assert_ne!(digest_of("[1,2]"), digest_of("[2,1]"));
    }
}
