//! A transaction that does not commit leaves no trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use windlass_core::actor::Actor;
use windlass_core::breaker::{Forced, Scope};
use windlass_core::ids::{TaskId, WorkerId};
use windlass_core::keys::{OnConflict, OnFailure};
use windlass_core::settings::TypeChange;
use windlass_core::store::{Amendment, ClaimRequest, Finish, Heartbeat, Outcome, Renewal, Store};
use windlass_core::task::ClaimedTask;
use windlass_testkit::fixtures::{
    again, completed, failed, failed_for_good, priority, profile, queue, task, task_type,
};
use windlass_testkit::rig::{LEASE, Witness, seconds};
use windlass_testkit::{ManualClock, MemoryStore};

fn change(text: &str) -> TypeChange {
    serde_json::from_str(text).expect("a change of a type")
}

struct Bench {
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    is_full: Arc<AtomicBool>,
}

impl Bench {
    fn new(clock: &Arc<ManualClock>) -> Self {
        let is_full = Arc::new(AtomicBool::new(false));
        let store = MemoryStore::with_switch(clock.clone(), Arc::new(Witness::default()), Arc::clone(&is_full));
        Self { clock: Arc::clone(clock), store, is_full }
    }

    fn full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    async fn worker(&self) -> WorkerId {
        let profile = profile();
        let id = profile.id;
        self.store.register_worker(profile).await.expect("taken");
        id
    }

    async fn claim(&self, worker: WorkerId, up_to: usize) -> Vec<ClaimedTask> {
        let request = ClaimRequest { worker, capabilities: None, up_to, lease: LEASE, wait: false };
        self.store.claim(request).await.expect("answered").tasks
    }
}

#[tokio::test]
async fn a_rate_that_could_not_be_taken_away_is_no_new_one() {
    let bench = Bench::new(&Arc::new(ManualClock::new()));
    let rate = change(r#"{"rate_limit":{"count":1,"per_seconds":60,"burst":3}}"#);
    bench.store.change_type(task_type("a"), rate).await.expect("sound");
    bench.store.submit((0..9).map(|_| task("a").build()).collect()).await.expect("taken");
    let worker = bench.worker().await;
    assert_eq!(bench.claim(worker, 9).await.len(), 3);
    bench.full(true);
    bench.store.change_type(task_type("a"), change(r#"{"rate_limit":null}"#)).await.expect_err("not written");
    bench.full(false);
    assert_eq!(bench.claim(worker, 9).await.len(), 0, "the burst is used up");
    bench.clock.advance(seconds(61));
    assert_eq!(bench.claim(worker, 9).await.len(), 1);
}

#[tokio::test]
async fn leases_are_renewed_while_nothing_can_be_written() {
    let bench = Bench::new(&Arc::new(ManualClock::new()));
    let worker = bench.worker().await;
    bench.full(true);
    bench.store.submit(vec![task("a").build()]).await.expect_err("not written");
    for _ in 0..2 {
        let beat =
            Heartbeat { worker, renewal: Renewal::All, lease: LEASE, unhealthy: false, draining: false, health: None };
        bench.store.heartbeat(beat).await.expect("a renewal writes nothing");
    }
}

/// A sequence of numbers that looks like chance and is the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

#[derive(Clone, Debug)]
enum Deed {
    Submit(Vec<windlass_core::task::NewTask>),
    Claim(WorkerId, usize),
    Finish(WorkerId, TaskId, windlass_core::ids::LeaseToken, Outcome),
    Cancel(TaskId),
    Amend(TaskId, Amendment),
    Bury(TaskId),
    Again(TaskId),
    Discard(TaskId),
    Due,
    Lapse,
    TimeOut,
    Expire,
    Prune,
    Type(&'static str, &'static str),
    Queue(&'static str),
    Force(Option<Forced>),
    Deregister(WorkerId),
    Register(windlass_core::worker::WorkerProfile),
}

async fn act(store: &Arc<dyn Store>, deed: Deed) -> (String, Vec<(WorkerId, ClaimedTask)>, Vec<TaskId>) {
    let (mut got, mut ids) = (Vec::new(), Vec::new());
    let text = match deed {
        Deed::Submit(tasks) => {
            let answers = store.submit(tasks).await;
            ids.extend(answers.iter().flatten().map(|answer| answer.id));
            format!("{answers:?}")
        }
        Deed::Claim(worker, up_to) => {
            let request = ClaimRequest { worker, capabilities: None, up_to, lease: LEASE, wait: false };
            let answer = store.claim(request).await;
            if let Ok(claimed) = &answer {
                got.extend(claimed.tasks.iter().map(|task| (worker, task.clone())));
            }
            format!("{answer:?}")
        }
        Deed::Finish(worker, id, token, outcome) => {
            format!("{:?}", store.finish(worker, vec![Finish::new(id, token, outcome)]).await)
        }
        Deed::Cancel(id) => format!("{:?}", store.cancel(vec![id], Actor::Api).await),
        Deed::Amend(id, amendment) => format!("{:?}", store.amend(id, amendment, Actor::Api).await),
        Deed::Bury(id) => format!("{:?}", store.bury(vec![id], "x".into(), Actor::Api).await),
        Deed::Again(id) => format!("{:?}", store.requeue(vec![again(id)], Actor::Api).await),
        Deed::Discard(id) => format!("{:?}", store.discard(vec![id], None, Actor::Api).await),
        Deed::Due => format!("{:?}", store.make_due(50).await),
        Deed::Lapse => format!("{:?}", store.lapse_leases(50).await),
        Deed::TimeOut => format!("{:?}", store.time_out(50).await),
        Deed::Expire => format!("{:?}", store.expire(50).await),
        Deed::Prune => format!("{:?}", store.prune(50).await),
        Deed::Type(name, text) => format!("{:?}", store.change_type(task_type(name), change(text)).await),
        Deed::Queue(text) => {
            let change = serde_json::from_str(text).expect("a change of a queue");
            format!("{:?}", store.change_queue(queue("default"), change).await)
        }
        Deed::Force(forced) => format!("{:?}", store.force_breaker(Scope::Type(task_type("a")), forced).await),
        Deed::Deregister(worker) => format!("{:?}", store.deregister_worker(worker).await),
        Deed::Register(profile) => format!("{:?}", store.register_worker(profile).await),
    };
    (text, got, ids)
}

async fn picture(store: &Arc<dyn Store>) -> String {
    let mut lanes: Vec<String> = store.lanes().await.expect("lanes").iter().map(|lane| format!("{lane:?}\n")).collect();
    lanes.sort();
    let mut workers = Vec::new();
    for mut worker in store.workers().await.expect("workers") {
        // A call that came to nothing is a sign of life all the same.
        worker.last_seen_at = worker.registered_at;
        workers.push(format!("{worker:?}\n"));
    }
    workers.sort();
    let breakers = store.breakers().await.expect("breakers");
    format!("{lanes:?} {workers:?} {breakers:?} {:?}", store.stats().await).replace("\\n", "\n").replace("\\\"", "")
}

#[tokio::test]
async fn what_could_not_be_written_leaves_no_trace() {
    let rounds: u64 = std::env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    for seed in 1..=rounds {
        let clock = Arc::new(ManualClock::new());
        let (tried, plain) = (Bench::new(&clock), Bench::new(&clock));
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut ids, mut running): (Vec<TaskId>, Vec<(WorkerId, ClaimedTask)>) = (Vec::new(), Vec::new());
        let mut workers = Vec::new();
        for step in 0..300 {
            clock.advance(std::time::Duration::from_millis(dice.roll(4_000)));
            let some_id = (!ids.is_empty()).then(|| ids[dice.roll(ids.len() as u64) as usize]);
            let deed = match (dice.roll(24), some_id) {
                _ if workers.len() < 2 => {
                    let profile = profile();
                    workers.push(profile.id);
                    Deed::Register(profile)
                }
                (0..=5, _) | (_, None) => Deed::Submit(
                    (0..=dice.roll(3))
                        .map(|_| {
                            let mut new = task(["a", "b"][dice.roll(2) as usize]).priority(priority(4 + dice.roll(3)));
                            let key = ["k", "l"][dice.roll(2) as usize];
                            new = match dice.roll(6) {
                                0 | 1 => new.ordered(key, [OnFailure::Block, OnFailure::Skip][dice.roll(2) as usize]),
                                2 | 3 => new.at_most(1 + dice.roll(2) as u32, key),
                                _ => new,
                            };
                            new = match dice.roll(8) {
                                0 => new.delay(seconds(dice.roll(20))),
                                1 => new.expires_at(windlass_core::time::Clock::now(&*clock) + seconds(dice.roll(20))),
                                2 => {
                                    let way = [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule];
                                    new.unique(way[dice.roll(3) as usize])
                                }
                                3 => new.key(&format!("i{}", dice.roll(5))),
                                4 => new.tenant(["t", "u"][dice.roll(2) as usize]),
                                _ => new,
                            };
                            new.build()
                        })
                        .collect(),
                ),
                (6..=9, _) => Deed::Claim(workers[dice.roll(workers.len() as u64) as usize], 1 + dice.roll(3) as usize),
                (10..=13, _) if !running.is_empty() => {
                    let (worker, task) = running.swap_remove(dice.roll(running.len() as u64) as usize);
                    let outcome = match dice.roll(7) {
                        0..=2 => completed(),
                        3 => failed(),
                        4 => failed_for_good(),
                        5 => Outcome::Released,
                        _ => Outcome::Snoozed(seconds(dice.roll(10))),
                    };
                    Deed::Finish(worker, task.id, task.token, outcome)
                }
                (14, Some(id)) => Deed::Cancel(id),
                (15, Some(id)) => Deed::Amend(
                    id,
                    Amendment {
                        priority: Some(priority(dice.roll(10))),
                        run_at: (dice.roll(2) == 0).then(|| windlass_core::time::Clock::now(&*clock) + seconds(5)),
                        tags: None,
                    },
                ),
                (16, Some(id)) => [Deed::Bury(id), Deed::Discard(id)][dice.roll(2) as usize].clone(),
                (17, Some(id)) => Deed::Again(id),
                (18, _) => [Deed::Lapse, Deed::TimeOut, Deed::Expire, Deed::Prune][dice.roll(4) as usize].clone(),
                (19, _) => Deed::Type(
                    ["a", "b"][dice.roll(2) as usize],
                    [
                        r#"{"concurrency":1}"#,
                        r#"{"concurrency":null}"#,
                        r#"{"paused":true}"#,
                        r#"{"paused":false}"#,
                        r#"{"slots":3}"#,
                        r#"{"slots":null}"#,
                        r#"{"breaker":{"min_attempts":2,"failure_ratio":0.5,"recovery_seconds":10}}"#,
                    ][dice.roll(7) as usize],
                ),
                (20, _) => Deed::Queue(
                    [
                        r#"{"concurrency":2}"#,
                        r#"{"concurrency":null}"#,
                        r#"{"policy":"fair"}"#,
                        r#"{"policy":null}"#,
                        r#"{"paused":true}"#,
                        r#"{"paused":false}"#,
                    ][dice.roll(6) as usize],
                ),
                (21, _) => Deed::Force([Some(Forced::Open), Some(Forced::Closed), None][dice.roll(3) as usize]),
                (22, _) if dice.roll(4) == 0 => Deed::Deregister(workers.swap_remove(0)),
                _ => Deed::Due,
            };
            let before = picture(&tried.store).await;
            tried.full(true);
            let (failed, ..) = act(&tried.store, deed.clone()).await;
            tried.full(false);
            let undone = picture(&tried.store).await;
            for (one, other) in undone.lines().zip(before.lines()).filter(|(one, other)| one != other) {
                println!("- {other}\n+ {one}");
            }
            assert!(undone == before, "seed {seed}, step {step}: undoing {deed:?} ({failed})");
            let (answer, got, new) = act(&tried.store, deed.clone()).await;
            let (expected, ..) = act(&plain.store, deed.clone()).await;
            if !matches!(deed, Deed::Claim(..)) {
                assert_eq!(answer, expected, "seed {seed}, step {step}: {deed:?}");
            }
            if answer != expected {
                break; // whose turn it is in a fair queue is not undone
            }
            running.extend(got);
            ids.extend(new);
            assert_eq!(picture(&tried.store).await, picture(&plain.store).await, "seed {seed}, step {step}: {deed:?}");
        }
    }
}
