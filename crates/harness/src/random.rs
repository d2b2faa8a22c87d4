//! A small seeded generator (`SplitMix64`). One seed gives one sequence on every machine and in every version, so that a
//! failing run can be tried again; it decides nothing that needs good randomness.

use std::time::Duration;

/// A generator of repeatable random decisions.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of one client of a run: same seed and stream, same decisions.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self { state: seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95) };
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to just below `bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// True in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A duration between two bounds.
    pub fn duration(&mut self, least: Duration, most: Duration) -> Duration {
        let span_us = most.saturating_sub(least).as_micros() as u64;
        least + Duration::from_micros(self.below(span_us + 1))
    }

    /// One of the items, unless there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_decisions_and_streams_differ() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.below(1_000_000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn values_stay_in_their_bounds() {
        let mut random = Random::new(9, 0);
        for _ in 0..1000 {
            assert!(random.below(7) < 7);
            let drawn = random.duration(Duration::from_millis(50), Duration::from_millis(60));
            assert!(drawn >= Duration::from_millis(50) && drawn <= Duration::from_millis(60));
        }
        assert_eq!(random.below(0), 0);
        assert_eq!(random.pick::<u8>(&[]), None);
        let hits = (0..10_000).filter(|_| random.chance(250)).count();
        assert!((2_000..3_000).contains(&hits), "{hits}");
    }
}
