//! The list, the metrics and the statistics say the same at moments at which nobody calls; so do all nodes, and the rows
//! of the database.

use std::collections::BTreeMap;

use super::{Counts, Findings, Index, Rule, is_ended};

pub(super) fn check(index: &Index<'_>, found: &mut Findings) {
    for counts in &index.evidence.counts {
        agree(counts, found);
    }
    // What has settled stays as it is, whoever is asked.
    let mut settled = index.evidence.counts.iter().filter(|counts| counts.settled);
    if let Some(first) = settled.next() {
        for other in settled.filter(|other| other.listed != first.listed) {
            let detail = format!("{}: {:?}, but {}: {:?}", first.moment, first.listed, other.moment, other.listed);
            found.add(Rule::Agreement, None, detail);
        }
    }
    if let Some(rows) = &index.evidence.rows {
        agree_with_rows(index, rows, found);
    }
}

fn agree_with_rows(index: &Index<'_>, rows: &BTreeMap<String, u64>, found: &mut Findings) {
    let count =
        |wanted: &dyn Fn(&str) -> bool| index.evidence.tasks.iter().filter(|task| wanted(&task.status)).count() as u64;
    let together = rows.contains_key("ended");
    let statuses = index.evidence.tasks.iter().map(|task| task.status.as_str());
    let wanted = statuses.filter(|status| is_ended(status) && !together).chain(rows.keys().map(String::as_str));
    for name in wanted.collect::<std::collections::BTreeSet<_>>() {
        let listed = match name {
            "live" => count(&|status| !is_ended(status)),
            "ended" => count(&is_ended),
            status => count(&|other| other == status),
        };
        let stored = rows.get(name).copied().unwrap_or(0);
        if listed != stored {
            let detail = format!("the list has {listed} tasks that are {name}, the database {stored}");
            found.add(Rule::Agreement, None, detail);
        }
    }
}

fn agree(counts: &Counts, found: &mut Findings) {
    let moment = &counts.moment;
    let statuses = counts.listed.keys().chain(counts.metrics.keys()).collect::<std::collections::BTreeSet<_>>();
    for status in statuses {
        // Between two questions a waiting task may become due or a lease lapse; ends come from calls only.
        if !counts.settled && !is_ended(status) {
            continue;
        }
        let listed = counts.listed.get(status).copied().unwrap_or(0);
        let metrics = counts.metrics.get(status).copied().unwrap_or(0);
        if listed != metrics {
            let detail = format!("{moment}: the list has {listed} {status} tasks, the metrics {metrics}");
            found.add(Rule::Agreement, None, detail);
        }
    }
    let live = |by_status: &BTreeMap<String, u64>| -> u64 {
        by_status.iter().filter(|(status, _)| !is_ended(status)).map(|(_, count)| count).sum()
    };
    let (listed, metrics) = (live(&counts.listed), live(&counts.metrics));
    if listed != metrics {
        let detail = format!("{moment}: the list has {listed} tasks that have not ended, the metrics {metrics}");
        found.add(Rule::Agreement, None, detail);
    }
    let stats = counts.stats_depth + counts.stats_executing;
    if stats > listed || (counts.settled && stats != listed) {
        let detail = format!(
            "{moment}: the list has {listed} tasks that have not ended, the statistics {} waiting and {} executing",
            counts.stats_depth, counts.stats_executing
        );
        found.add(Rule::Agreement, None, detail);
    }
}
