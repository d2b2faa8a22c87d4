//! The list, the metrics and the statistics say the same at moments at which nobody calls.

use std::collections::BTreeMap;

use super::{Counts, Findings, Index, Rule, is_ended};

pub(super) fn check(index: &Index<'_>, found: &mut Findings) {
    for counts in &index.evidence.counts {
        agree(counts, found);
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
