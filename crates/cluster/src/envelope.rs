//! What is around the redo of an entry: the tasks whose rows it changed, so that whoever
//! follows does not go on with old ones.

use windlass_core::ids::TaskKey;

/// An entry whose envelope cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an entry of the log has no readable envelope")]
pub struct BadEnvelope;

/// Puts the keys before the redo.
pub fn seal(stale: impl Iterator<Item = TaskKey>, redo: &[u8]) -> Vec<u8> {
    let keys: Vec<TaskKey> = stale.collect();
    let mut sealed = Vec::with_capacity(4 + 8 * keys.len() + redo.len());
    sealed.extend((keys.len() as u32).to_le_bytes());
    for key in keys {
        sealed.extend(key.0.to_le_bytes());
    }
    sealed.extend(redo);
    sealed
}

/// The keys and the redo.
pub fn open(sealed: &[u8]) -> Result<(Vec<TaskKey>, &[u8]), BadEnvelope> {
    let (count, rest) = sealed.split_first_chunk::<4>().ok_or(BadEnvelope)?;
    let length = (u32::from_le_bytes(*count) as usize).checked_mul(8).ok_or(BadEnvelope)?;
    let (keys, redo) = rest.split_at_checked(length).ok_or(BadEnvelope)?;
    let (keys, _) = keys.as_chunks::<8>();
    Ok((keys.iter().map(|key| TaskKey(u64::from_le_bytes(*key))).collect(), redo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened() {
        let keys = [TaskKey(1), TaskKey(u64::MAX)];
        let sealed = seal(keys.into_iter(), b"redo");
        assert_eq!(open(&sealed), Ok((keys.to_vec(), &b"redo"[..])));
        assert_eq!(open(&[9, 0, 0, 0, 1]), Err(BadEnvelope));
        assert_eq!(open(&[]), Err(BadEnvelope));
    }
}
