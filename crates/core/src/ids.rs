//! Ids and lease tokens. A task id is a UUIDv7 whose free bits carry the store's own
//! integer key, so that a task is found by its key and no second index is needed.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;
use uuid::Uuid;

use crate::time::Timestamp;

/// The store's own key of a task: dense, growing with every submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey(pub u64);

/// Keys fit in this many bits of a task id: 17 trillion tasks.
const KEY_BITS: u32 = 44;

impl TaskKey {
    /// Keys from here on are not given by the store: they belong to tasks that others wrote into its inbox, in
    /// transactions of their own, and are numbered there.
    pub const INBOX: u64 = 1 << (KEY_BITS - 1);
}

/// The check bits beside the key.
const CHECK_BITS: u32 = 62 - KEY_BITS;

/// The public id of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(Uuid);

impl TaskId {
    /// The id as a UUID.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }

    /// An id read back from where it was stored.
    pub fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

/// The id of a worker: random, made at registration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(Uuid);

impl WorkerId {
    /// A fresh random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id as a UUID.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }

    /// An id read back from where it was stored.
    pub fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

/// The text is no id of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be a UUID")]
pub struct BadId;

macro_rules! uuid_text {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                Uuid::try_parse(text).map(Self).map_err(|_| BadId)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a UUID")
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    };
}

uuid_text!(TaskId);
uuid_text!(WorkerId);

/// The number of a claim. It grows with every claim of a store, so a later claim of the
/// same task always has the larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimNo(pub u64);

/// The fencing token of a lease: the claim number and check bits that tie it to its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    claim: ClaimNo,
    check: u64,
}

impl LeaseToken {
    /// Which claim the token belongs to.
    pub fn claim(self) -> ClaimNo {
        self.claim
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:016x}", self.claim.0, self.check)
    }
}

/// The text is no lease token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be the lease_token that came with the task")]
pub struct BadToken;

impl FromStr for LeaseToken {
    type Err = BadToken;
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let (claim, check) = text.split_once('.').ok_or(BadToken)?;
        let hex = |text: &str| {
            let fits = !text.is_empty() && text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then(|| u64::from_str_radix(text, 16).ok()).flatten().ok_or(BadToken)
        };
        Ok(Self { claim: ClaimNo(hex(claim)?), check: hex(check)? })
    }
}

impl Serialize for LeaseToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LeaseToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Makes and checks ids and tokens with a secret of the store, so that the check bits
/// need no room on disk and a made-up id is refused without a look-up.
#[derive(Clone)]
pub struct IdCodec {
    secret: [u8; 16],
}

impl fmt::Debug for IdCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdCodec")
    }
}

impl IdCodec {
    /// A codec with the secret of a store.
    pub fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    fn mix(&self, purpose: u8, first: u64, second: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write_u8(purpose);
        hasher.write_u64(first);
        hasher.write_u64(second);
        hasher.finish()
    }

    /// The check bits of an id. Those of the inbox are made inside the database, which has no keyed hash but this.
    fn id_check(&self, key: TaskKey, millis: u64) -> u64 {
        if key.0 < TaskKey::INBOX {
            return self.mix(b'i', key.0, millis);
        }
        let hash = Sha256::new().chain_update(self.secret).chain_update(key.0.to_be_bytes());
        let [first, ..] = *hash.chain_update(millis.to_be_bytes()).finalize().as_chunks::<8>().0 else { return 0 };
        u64::from_be_bytes(first)
    }

    /// The id of the task that has this key and was created at this time.
    pub fn task_id(&self, key: TaskKey, created_at: Timestamp) -> TaskId {
        let millis = created_at.as_millis();
        let check = self.id_check(key, millis);
        let rand_a = (check >> 52) as u16 & 0x0fff;
        let rand_b = (key.0 << CHECK_BITS) | (check & ((1 << CHECK_BITS) - 1));
        let high = (millis << 16) | 0x7000 | u64::from(rand_a);
        let low = (0b10 << 62) | (rand_b & ((1 << 62) - 1));
        TaskId(Uuid::from_u64_pair(high, low))
    }

    /// The key inside an id, if this store could have made it.
    pub fn task_key(&self, id: TaskId) -> Option<TaskKey> {
        let (high, low) = id.0.as_u64_pair();
        let key = TaskKey((low & ((1 << 62) - 1)) >> CHECK_BITS);
        let created_at = Timestamp::from_micros(i64::try_from(high >> 16).ok()?.checked_mul(1_000)?);
        (self.task_id(key, created_at) == id).then_some(key)
    }

    /// The token of one claim of a task.
    pub fn token(&self, key: TaskKey, claim: ClaimNo) -> LeaseToken {
        LeaseToken { claim, check: self.mix(b't', key.0, claim.0) }
    }

    /// Whether this store gave this token for this task.
    pub fn is_genuine(&self, key: TaskKey, token: LeaseToken) -> bool {
        self.token(key, token.claim) == token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_id_leads_back_to_its_key_and_is_a_v7(key in 0..1u64 << KEY_BITS, micros in 0..Timestamp::MAX.as_micros()) {
            let codec = IdCodec::new(*b"0123456789abcdef");
            let id = codec.task_id(TaskKey(key), Timestamp::from_micros(micros));
            prop_assert_eq!(codec.task_key(id), Some(TaskKey(key)));
            prop_assert_eq!(id.as_uuid().get_version_num(), 7);
            prop_assert_eq!(IdCodec::new([7; 16]).task_key(id), None);
        }

        #[test]
        fn tokens_survive_the_wire_and_do_not_fit_other_tasks(key: u64, claim: u64) {
            let codec = IdCodec::new([3; 16]);
            let token = codec.token(TaskKey(key), ClaimNo(claim));
            prop_assert_eq!(token.to_string().parse(), Ok(token));
            prop_assert!(codec.is_genuine(TaskKey(key), token));
            prop_assert!(!codec.is_genuine(TaskKey(key ^ 1), token));
        }
    }

    #[test]
    fn bad_tokens() {
        for text in ["", ".", "1", "1.", ".1", "x.1", "+1.1", "11111111111111111.0", "1.2.3"] {
            assert_eq!(text.parse::<LeaseToken>(), Err(BadToken), "{text}");
        }
    }
}
