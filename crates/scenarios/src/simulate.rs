//! The overload simulation: the reference store on a clock of its own, hours in seconds, the same every time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass_core::event::NoObserver;
use windlass_core::names::QueueName;
use windlass_core::priority::Priority;
use windlass_core::store::Store;
use windlass_core::time::Clock;
use windlass_testkit::fixtures::{profile, task};
use windlass_testkit::{ManualClock, MemoryStore};

use crate::plot::{Line, svg};
use crate::stage::{Outcomes, claim, complete, submit};

const LEASE: Duration = Duration::from_secs(60);
/// Tasks that all workers together do in a second.
const CAPACITY: u64 = 10;
/// Critical tasks that arrive in a second beside the old backlog.
const CRITICAL: u64 = 6;

struct Simulation {
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    worker: windlass_core::ids::WorkerId,
}

/// What was done in one minute, by band, and how long it had waited.
#[derive(Clone, Copy, Default)]
struct Minute {
    high: f64,
    low: f64,
    high_waited: f64,
    low_waited: f64,
}

impl Simulation {
    async fn open() -> Outcomes<Self> {
        let clock = Arc::new(ManualClock::new());
        let store: Arc<dyn Store> = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(NoObserver));
        let profile = profile();
        let worker = profile.id;
        store.register_worker(profile).await?;
        let open_depth = serde_json::from_str(r#"{"depth":{"soft":100000000,"hard":100000000}}"#)?;
        store.change_queue(QueueName::default(), open_depth).await?;
        Ok(Self { clock, store, worker })
    }

    /// One second: so many of each priority arrive, the capacity is used.
    async fn second(&self, arrivals: &[(Priority, u64)], minute: &mut Minute) -> Outcomes {
        for (priority, count) in arrivals {
            submit(&*self.store, (0..*count).map(|_| task("work").priority(*priority).build())).await?;
        }
        for _ in 0..CAPACITY {
            self.clock.advance(Duration::from_millis(1_000 / CAPACITY));
            let tasks = claim(&*self.store, self.worker, 1, false, LEASE).await?;
            for claimed in &tasks {
                let waited = self.clock.now().since(claimed.created_at).as_secs_f64();
                if claimed.spec.priority >= Priority::HIGH {
                    minute.high += 1.0;
                    minute.high_waited = minute.high_waited.max(waited);
                } else {
                    minute.low += 1.0;
                    minute.low_waited = minute.low_waited.max(waited);
                }
            }
            complete(&*self.store, self.worker, &tasks).await?;
        }
        Ok(())
    }
}

/// High work arrives faster than it can be done; low work gets its share all the same.
async fn overload(folder: Option<&Path>) -> Outcomes {
    let simulation = Simulation::open().await?;
    let mut minutes = Vec::new();
    for _ in 0..120 {
        let mut minute = Minute::default();
        for _ in 0..60 {
            simulation.second(&[(Priority::HIGH, 12), (Priority::LOW, 2)], &mut minute).await?;
        }
        minutes.push(minute);
    }
    let (early, late) = (&minutes[..30], &minutes[60..]);
    let share = |minutes: &[Minute]| {
        let low: f64 = minutes.iter().map(|minute| minute.low).sum();
        low / (low + minutes.iter().map(|minute| minute.high).sum::<f64>())
    };
    println!("Overload: 12 high and 2 low tasks a second, 10 done a second, 2 hours");
    println!("  share of low in the first half hour   {:5.1} %", share(early) * 100.0);
    println!("  share of low in the second hour       {:5.1} %  (arrive: 20 % of the capacity)", share(late) * 100.0);
    let longest = minutes.iter().map(|minute| minute.low_waited).fold(0.0, f64::max);
    println!("  longest wait of a low task done       {longest:5.0} s  (bound of low behind high: 1800 s)");
    if share(late) < 0.19 || share(late) > 0.26 {
        return Err("low work did not get its share under overload".into());
    }
    if longest > 2_400.0 {
        return Err("a low task waited far beyond its bound though its share would have been enough".into());
    }
    write(
        folder,
        "overload.svg",
        &svg(
            "Overload: 12 high and 2 low tasks arrive a second, 10 are done",
            "minutes",
            "done per second",
            &[
                line("high", "#c0392b", &minutes, |minute| minute.high / 60.0),
                line("low", "#2980b9", &minutes, |minute| minute.low / 60.0),
            ],
        ),
    )
}

/// A million overdue low tasks, and critical work that keeps coming.
async fn backlog(folder: Option<&Path>, size: usize) -> Outcomes {
    let simulation = Simulation::open().await?;
    submit(&*simulation.store, (0..size).map(|_| task("import").priority(Priority::LOW).build())).await?;
    simulation.clock.advance(Duration::from_secs(7_200));
    let mut minutes = Vec::new();
    for _ in 0..30 {
        let mut minute = Minute::default();
        for _ in 0..60 {
            simulation.second(&[(Priority::CRITICAL, CRITICAL)], &mut minute).await?;
        }
        minutes.push(minute);
    }
    let expected = CRITICAL * 60 * 30;
    let critical: f64 = minutes.iter().map(|minute| minute.high).sum();
    let longest = minutes.iter().map(|minute| minute.high_waited).fold(0.0, f64::max);
    println!(
        "Backlog: {size} low tasks that wait for two hours, {CRITICAL} critical tasks a second, 10 done a second, 30 minutes"
    );
    println!("  critical tasks done                   {critical:5.0} of {expected}");
    println!("  longest wait of a critical task       {longest:5.1} s");
    if critical < expected as f64 - 10.0 || longest > 1.1 {
        return Err("critical work had to wait behind an old backlog".into());
    }
    write(
        folder,
        "backlog.svg",
        &svg(
            "A million overdue low tasks beside 6 critical tasks a second: what is done",
            "minutes",
            "done per second",
            &[
                line("critical", "#c0392b", &minutes, |minute| minute.high / 60.0),
                line("low", "#2980b9", &minutes, |minute| minute.low / 60.0),
            ],
        ),
    )
}

fn line(name: &'static str, colour: &'static str, minutes: &[Minute], value: impl Fn(&Minute) -> f64) -> Line {
    let points = minutes.iter().enumerate().map(|(index, minute)| (index as f64 + 1.0, value(minute))).collect();
    Line { name, colour, points }
}

fn write(folder: Option<&Path>, name: &str, picture: &str) -> Outcomes {
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(name), picture)?;
        println!("  picture                               {}", folder.join(name).display());
    }
    Ok(())
}

/// Both simulations.
pub async fn run(folder: Option<&Path>, backlog_size: usize) -> Outcomes {
    overload(folder).await?;
    backlog(folder, backlog_size).await
}
