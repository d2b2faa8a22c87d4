//! Entries of other nodes: which a node can follow, and what that costs. The measurement is run by name:
//! `cargo test -p windlass-testkit --test following -- --ignored --nocapture`

use std::sync::Arc;
use std::time::Duration;

use windlass_cluster::backend::{Backend, Entry, NodeId, Tail};
use windlass_cluster::{NodeOptions, envelope, open};
use windlass_core::event::NoObserver;
use windlass_core::store::{Capabilities, ClaimRequest, Finish, Store};
use windlass_ledger::journal::Recovered;
use windlass_ledger::ledger::Ledger;
use windlass_ledger::recover::Recovery;
use windlass_testkit::ManualClock;
use windlass_testkit::fixtures::{completed, profile, task};
use windlass_testkit::rig::LEASE;
use windlass_testkit::shared_memory::SharedMemory;

const TASKS: usize = 20_000;
const ROUNDS: usize = 5;

/// What one node wrote while it submitted, claimed and finished so many tasks, so many at a time.
async fn log(tasks: usize, batch: usize, clock: &Arc<ManualClock>) -> Vec<Entry> {
    let database = SharedMemory::new(Arc::clone(clock) as _);
    let options = NodeOptions {
        name: "shared",
        capabilities: Capabilities { batches_span_queues: true, durable: true, keeps_whole_days: false },
        lease: LEASE,
        clock: Some(Arc::clone(clock) as _),
        node: NodeId(1),
    };
    let node = open(Arc::clone(&database) as _, database.archive(), options, Arc::new(NoObserver));
    let node = node.await.expect("opens");
    let worker = profile();
    let worker_id = worker.id;
    node.register_worker(worker).await.expect("taken");
    for _ in 0..tasks / batch {
        node.submit((0..batch).map(|_| task("send_email").build()).collect()).await.expect("taken");
        clock.advance(Duration::from_millis(37));
        let request = ClaimRequest { worker: worker_id, capabilities: None, up_to: batch, lease: LEASE, wait: false };
        let claimed = node.claim(request).await.expect("served").tasks;
        let results = claimed.iter().map(|task| Finish::new(task.id, task.token, completed())).collect();
        node.finish(worker_id, results).await.expect("taken");
    }
    match database.tail(0, usize::MAX).await.expect("read") {
        Tail::Entries(entries) => entries,
        Tail::Gone => panic!("nothing was cut"),
    }
}

/// How long this thread has been on a processor: others may be busy on the same machine.
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number"))
}

fn empty(clock: &Arc<ManualClock>) -> Ledger {
    Recovery::new(
        Arc::clone(clock) as _,
        Recovered { next_task: 1, next_claim: 1, next_event: 1, ..Recovered::default() },
    )
    .finish(LEASE)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_an_older_format_is_followed_and_one_of_a_newer_is_refused() {
    let clock = Arc::new(ManualClock::new());
    let entries = log(1, 1, &clock).await;
    let redo = |place: usize| envelope::open(&entries[place].redo).expect("sealed").1.to_vec();
    let (registered, submitted) = (redo(0), redo(1));
    let mut ledger = empty(&clock);
    assert_eq!(ledger.follow(&submitted).expect("followed").len(), 1);
    // The first format ended where now there are facts, of which a registration has none.
    let mut older = registered.clone();
    assert_eq!((older[0], older.pop()), (2, Some(0)));
    older[0] = 1;
    assert_eq!(ledger.follow(&older), Ok(Vec::new()));
    let mut newer = registered;
    newer[0] = 3;
    assert!(ledger.follow(&newer).is_err());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a promise"]
async fn the_cost_of_following() {
    for batch in [1, 10, 100] {
        let clock = Arc::new(ManualClock::new());
        let entries = log(TASKS, batch, &clock).await;
        let bytes: usize = entries.iter().map(|entry| entry.redo.len()).sum();
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let mut ledger = empty(&clock);
            let begun = on_processor();
            for entry in &entries {
                let (_, redo) = envelope::open(&entry.redo).expect("sealed");
                ledger.follow(redo).expect("followed");
            }
            best = best.min(on_processor().saturating_sub(begun));
        }
        println!(
            "{batch:>3} at a time: {} entries, {:.1} bytes and {:.2} µs a task",
            entries.len(),
            bytes as f64 / TASKS as f64,
            best.as_secs_f64() * 1e6 / TASKS as f64,
        );
    }
}
