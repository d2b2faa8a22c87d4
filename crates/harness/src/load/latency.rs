//! Latencies and their percentiles.

use std::time::Duration;

use serde::Serialize;

/// Percentiles in microseconds.
#[allow(clippy::struct_field_names, reason = "units belong in names")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Half are faster.
    pub p50_us: u64,
    /// One in a hundred is slower.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
}

impl Percentiles {
    /// Percentiles by nearest rank; zeros when nothing was measured.
    pub fn of(mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let rank = |percent: usize| {
            let position = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
            latencies.get(position).map_or(0, |latency| latency.as_micros() as u64)
        };
        Self { p50_us: rank(50), p99_us: rank(99), max_us: rank(100) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let of = |micros: &[u64]| Percentiles::of(micros.iter().map(|us| Duration::from_micros(*us)).collect());
        assert_eq!(of(&[]), Percentiles::default());
        assert_eq!(of(&[7]), Percentiles { p50_us: 7, p99_us: 7, max_us: 7 });
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(of(&hundred), Percentiles { p50_us: 50, p99_us: 99, max_us: 100 });
    }
}
