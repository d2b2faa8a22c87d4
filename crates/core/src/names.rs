//! Validated names and texts. A value of these types has passed its rule, so nothing
//! behind the edge checks it again.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits;

/// The text breaks the rule of the name it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Queue and task type names.
    #[error("must start with a letter or digit and have 1 to 128 of letters, digits, '.', '_', ':', '-'")]
    Name,
    /// Capabilities and tag keys.
    #[error("must have 1 to 64 of letters, digits, '.', '_', ':', '-'")]
    Label,
    /// Keys, tag values, tenants, worker names.
    #[error("must be 1 to 256 bytes of text without control characters")]
    Text,
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-')
}

fn check_name(text: &str) -> Result<(), BadName> {
    let starts_well = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    let fits = starts_well && text.len() <= limits::NAME_BYTES && text.bytes().all(is_name_byte);
    if fits { Ok(()) } else { Err(BadName::Name) }
}

fn check_label(text: &str) -> Result<(), BadName> {
    let fits = !text.is_empty() && text.len() <= limits::LABEL_BYTES && text.bytes().all(is_name_byte);
    if fits { Ok(()) } else { Err(BadName::Label) }
}

fn check_text(text: &str) -> Result<(), BadName> {
    let fits = !text.is_empty() && text.len() <= limits::TEXT_BYTES && !text.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(BadName::Text) }
}

/// One newtype per kind of name, so that a queue cannot be passed for a task type.
/// They are shared pointers: names are repeated on every task and cloned often.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes the text if it follows the rule.
            pub fn new(text: &str) -> Result<Self, BadName> {
                $check(text)?;
                Ok(Self(text.into()))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a string")
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $name::new(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    };
}

name!(/// A queue: what workers serve and operators pause.
    QueueName, check_name);
name!(/// What kind of work a task is; it names the handler.
    TaskType, check_name);
name!(/// Something a worker can do that not every worker can (`gpu`).
    Capability, check_label);
name!(/// The key of a tag.
    TagKey, check_label);
name!(/// Any short text without control characters: keys, tag values, tenants, worker names.
    Text, check_text);

impl Default for QueueName {
    fn default() -> Self {
        Self("default".into())
    }
}

/// A sorted set of capabilities. Shared, because every task of a lane has the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapabilitySet(Option<Arc<[Capability]>>);

impl CapabilitySet {
    /// Sorts and removes what is named twice.
    pub fn new(mut capabilities: Vec<Capability>) -> Self {
        capabilities.sort();
        capabilities.dedup();
        if capabilities.is_empty() { Self(None) } else { Self(Some(capabilities.into())) }
    }

    /// The capabilities in order.
    pub fn as_slice(&self) -> &[Capability] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether everything in `other` is in `self` too.
    pub fn covers(&self, other: &Self) -> bool {
        other.as_slice().iter().all(|capability| self.as_slice().binary_search(capability).is_ok())
    }
}

impl Serialize for CapabilitySet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CapabilitySet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Vec::<Capability>::deserialize(deserializer)?;
        if list.len() > limits::CAPABILITIES {
            return Err(de::Error::custom(format_args!("must have at most {} capabilities", limits::CAPABILITIES)));
        }
        Ok(Self::new(list))
    }
}

/// Cuts a long text at a character boundary and leaves a mark, so that a reader knows.
pub fn cut(mut text: String, bytes: usize) -> String {
    const MARK: &str = "… [cut]";
    if text.len() > bytes {
        let mut end = bytes.saturating_sub(MARK.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_names() {
        for good in ["a", "A.b_c:d-9", &"x".repeat(128)] {
            assert!(QueueName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a b", "a/b", "é", "a\n", "a\0", "../x", &"x".repeat(129)] {
            assert_eq!(TaskType::new(bad), Err(BadName::Name), "{bad:?}");
        }
        assert!(Capability::new("-x").is_ok());
        assert!(Capability::new(&"x".repeat(65)).is_err());
        assert!(Text::new("größe {x} '\"").is_ok());
        for bad in ["", "a\0b", "a\nb", "\u{85}", &"x".repeat(257)] {
            assert!(Text::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn capability_sets_are_sets() {
        let set =
            |names: &[&str]| CapabilitySet::new(names.iter().filter_map(|name| Capability::new(name).ok()).collect());
        assert_eq!(set(&["b", "a", "b"]), set(&["a", "b"]));
        assert!(set(&["a", "b"]).covers(&set(&["b"])));
        assert!(set(&[]).covers(&set(&[])));
        assert!(!set(&["a"]).covers(&set(&["a", "b"])));
    }

    #[test]
    fn long_text_is_cut_at_a_character_with_a_mark() {
        assert_eq!(cut("short".into(), 10), "short");
        let cut_text = cut("é".repeat(100), 50);
        assert!(cut_text.len() <= 50 && cut_text.ends_with("[cut]"));
    }
}
