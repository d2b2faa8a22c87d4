//! Work beside a transaction that somebody holds open: nothing that dies meanwhile can be cleared away, so whatever
//! looks at dead rows gets slower by the minute.

use std::time::Duration;

use tokio::time::Instant;
use windlass_core::ids::WorkerId;
use windlass_core::store::Store;

use super::place::Place;
use super::{LEASE, work};
use crate::stage::{Outcomes, claim, complete, percentile};

/// The figures are shown for so many parts of the time.
const PARTS: u32 = 10;

/// Median and 99th percentile, in microseconds.
fn shown(micros: &mut [f64]) -> String {
    micros.sort_by(f64::total_cmp);
    format!("{:7.0} {:7.0}", percentile(micros, 0.5), percentile(micros, 0.99))
}

/// Submits, claims and completes one task after the other for so long, beside the transaction; then once more without it.
pub async fn run(place: &mut Place, store: &dyn Store, worker: WorkerId, span: Duration) -> Outcomes {
    place.settle().await;
    place.hold_open().await?;
    println!(
        "  beside a transaction that is held open for {} s: submit, claim, result, again and again",
        span.as_secs()
    );
    println!("    time          calls   submit of 1       claim of 1        touched per call of the three");
    for part in 1..=PARTS {
        work_for(
            place,
            store,
            worker,
            &format!("{:4.0} s open", span.as_secs_f64() * f64::from(part) / f64::from(PARTS)),
            span / PARTS,
        )
        .await?;
    }
    place.let_go();
    work_for(place, store, worker, "then without", span / PARTS).await
}

async fn work_for(place: &Place, store: &dyn Store, worker: WorkerId, name: &str, span: Duration) -> Outcomes {
    let before = place.figures().await?;
    let (mut submits, mut claims) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    while begun.elapsed() < span {
        let at = Instant::now();
        store.submit(vec![work(submits.len())]).await?;
        submits.push(at.elapsed().as_secs_f64() * 1e6);
        let at = Instant::now();
        let tasks = claim(store, worker, 1, false, LEASE).await?;
        claims.push(at.elapsed().as_secs_f64() * 1e6);
        if tasks.len() != 1 {
            return Err(format!("a claim of 1 got {} tasks", tasks.len()).into());
        }
        complete(store, worker, &tasks).await?;
    }
    let touched = place.figures().await?.per_call(&before, submits.len());
    println!("    {name:<12} {:6} {}   {}   {touched}", submits.len(), shown(&mut submits), shown(&mut claims));
    Ok(())
}
