//! What to do when a keeper is gone before its program: a program can kill its parent.

use rustix::process::Pid;
use tokio::time::{Duration, sleep};

use crate::processes::{self, Process};

/// A mark in the environment can be wiped and a session can be left, but to do both and to kill the keeper takes intent.
/// This is the second line, not the first.
const ROUNDS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Kills every process of the keeper's session and everyone with the run's mark. Gives how many are left.
pub(crate) async fn kill(keeper: Option<Pid>, mark: &str) -> u32 {
    let mut left = 0;
    for _ in 0..ROUNDS {
        let Ok(all) = processes::all() else { return left };
        let ours: Vec<Process> = all
            .into_iter()
            .filter(|process| (keeper.is_some() && process.session == keeper) || process.started_with(mark))
            .filter(|process| !process.is_zombie())
            .collect();
        left = ours.len() as u32;
        if ours.is_empty() {
            break;
        }
        processes::kill_all(&ours, None);
        sleep(PAUSE).await;
    }
    left
}
