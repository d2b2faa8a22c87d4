//! Each test seeds one bug in an otherwise sound history and shows that it is caught, and by which rule.

use super::*;
use crate::history::Verdict::{self, Completed, FailedFinal, FailedRetriable, Released};
use Outcome::{Fail, Ok as Done, Unknown};

const LIMITS: Limits = Limits { max_retries: 2, max_crashes: 3, lease_us: 2_000, lease_slack_us: 0 };

/// A history that is written call by call; every call takes 10 us and the next begins 10 us later.
struct Story {
    evidence: Evidence,
    now_us: u64,
    calls: u64,
}

impl Story {
    fn new() -> Self {
        let evidence = Evidence { limits: LIMITS, ..Evidence::default() };
        Self { evidence, now_us: 0, calls: 0 }
    }

    /// One submitted, run and completed task `t1`, sound in every way.
    fn sound() -> Self {
        let mut story = Self::new();
        story.submit("k1", "t1", Done);
        story.claim("t1", "k1", "1.a");
        story.result("t1", "1.a", "n1", Completed, Done, "completed");
        story.last("t1", "k1", "completed", Some("n1"));
        story
    }

    fn record(&mut self, op: Op, outcome: Outcome) -> &mut Record {
        self.calls += 1;
        self.now_us += 20;
        let seq = self.evidence.records.len() as u64;
        self.evidence.records.push(Record {
            seq,
            call: self.calls,
            client: 0,
            op,
            key: None,
            task_id: None,
            token: None,
            nonce: None,
            status: None,
            deduplicated: None,
            t_invoke_us: self.now_us - 10,
            t_complete_us: self.now_us,
            outcome,
        });
        self.evidence.records.last_mut().unwrap()
    }

    fn submit(&mut self, key: &str, task_id: &str, outcome: Outcome) {
        let record = self.record(Op::Submit, outcome);
        record.key = Some(key.into());
        record.task_id = (outcome == Done).then(|| task_id.into());
    }

    fn batch(&mut self, keys: &[&str], outcome: Outcome) {
        let call = self.calls + 1;
        for key in keys {
            let record = self.record(Op::Batch, outcome);
            record.call = call;
            record.key = Some((*key).into());
        }
    }

    /// A claim whose handler ran to its end.
    fn claim(&mut self, task_id: &str, key: &str, token: &str) {
        let record = self.record(Op::Claim, Done);
        record.task_id = Some(task_id.into());
        record.token = Some(token.into());
        self.evidence.runs.push(Run {
            client: 0,
            task_id: task_id.into(),
            key: Some(key.into()),
            token: token.into(),
            t_start_us: self.now_us,
            t_end_us: Some(self.now_us + 1),
        });
    }

    fn result(&mut self, task: &str, token: &str, nonce: &str, verdict: Verdict, outcome: Outcome, status: &str) {
        let record = self.record(Op::Result(verdict), outcome);
        record.task_id = Some(task.into());
        record.token = Some(token.into());
        record.nonce = Some(nonce.into());
        record.status = (outcome == Done).then(|| status.into());
    }

    fn on_task(&mut self, op: Op, task_id: &str, token: Option<&str>, outcome: Outcome, status: Option<&str>) {
        let record = self.record(op, outcome);
        record.task_id = Some(task_id.into());
        record.token = token.map(Into::into);
        record.status = status.map(Into::into);
    }

    fn follow_up(&mut self, key: &str, nonce: &str, outcome: Outcome) {
        let record = self.record(Op::FollowUp, outcome);
        record.key = Some(key.into());
        record.nonce = Some(nonce.into());
    }

    fn last(&mut self, task_id: &str, key: &str, status: &str, nonce: Option<&str>) -> &mut FinalTask {
        self.evidence.tasks.push(FinalTask {
            task_id: task_id.into(),
            key: Some(key.into()),
            status: status.into(),
            attempt: 1,
            retry_count: 0,
            crash_count: 0,
            nonce: nonce.map(Into::into),
        });
        self.evidence.tasks.last_mut().unwrap()
    }

    fn rules(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = check(&self.evidence).into_iter().map(|violation| violation.rule).collect();
        rules.dedup();
        rules
    }

    #[track_caller]
    fn is_sound(&self) {
        assert_eq!(check(&self.evidence), []);
    }

    #[track_caller]
    fn breaks(&self, rule: Rule) {
        assert!(self.rules().contains(&rule), "expected {rule}, found {:?}", check(&self.evidence));
    }

    #[track_caller]
    fn breaks_only(&self, rule: Rule) {
        assert_eq!(self.rules(), [rule], "{:?}", check(&self.evidence));
    }
}

#[test]
fn a_sound_history_passes() {
    Story::sound().is_sound();
}

#[test]
fn unknown_outcomes_are_no_failures() {
    let mut story = Story::new();
    // The submit got no answer and was applied, the result got no answer, was applied, and was sent again.
    story.submit("k1", "t1", Unknown);
    story.claim("t1", "k1", "1.a");
    story.result("t1", "1.a", "n1", Completed, Unknown, "");
    story.result("t1", "1.a", "n1", Completed, Done, "completed");
    story.last("t1", "k1", "completed", Some("n1"));
    // Another got no answer and was not applied.
    story.submit("k2", "t2", Unknown);
    story.is_sound();
}

#[test]
fn everything_a_worker_may_do_passes() {
    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    story.submit("k1", "t1", Done);
    story.claim("t1", "k1", "1.a");
    story.result("t1", "1.a", "n1", Released, Done, "queued");
    story.claim("t1", "k1", "2.b");
    story.result("t1", "2.b", "n2", FailedRetriable, Done, "scheduled");
    story.claim("t1", "k1", "3.c");
    // The failure is sent again after the next claim: acknowledged again, applied once.
    story.result("t1", "2.b", "n2", FailedRetriable, Done, "scheduled");
    story.result("t1", "1.a", "n1", Released, Fail, "");
    // A forged token and a second opinion are refused.
    story.result("t1", "9.f", "n9", FailedFinal, Fail, "");
    story.result("t1", "3.c", "n3", FailedFinal, Done, "dead_letter");
    story.result("t1", "3.c", "n4", Completed, Fail, "");
    story.on_task(Op::Read, "t1", None, Done, Some("dead_letter"));
    story.last("t1", "k1", "dead_letter", None).retry_count = 1;
    story.is_sound();
}

#[test]
fn catches_a_lost_task() {
    let mut story = Story::sound();
    story.submit("k2", "t2", Done);
    story.breaks_only(Rule::Lost);
}

#[test]
fn catches_a_task_that_is_gone_for_a_while() {
    let mut story = Story::sound();
    story.on_task(Op::Read, "t1", None, Fail, None);
    story.breaks_only(Rule::Lost);
}

#[test]
fn catches_a_lost_follow_up() {
    let mut story = Story::sound();
    story.follow_up("f1", "n1", Done);
    assert_eq!(story.rules(), [Rule::Lost, Rule::TornFollowUp]);
}

#[test]
fn catches_a_follow_up_of_a_result_that_was_not_applied() {
    let mut story = Story::new();
    // The first result got no answer, the second attempt completed the task: the first one's follow-up must not exist.
    story.submit("k1", "t1", Done);
    story.claim("t1", "k1", "1.a");
    story.result("t1", "1.a", "n1", Completed, Unknown, "");
    story.follow_up("f1", "n1", Unknown);
    story.claim("t1", "k1", "2.b");
    story.result("t1", "2.b", "n2", Completed, Done, "completed");
    story.last("t1", "k1", "completed", Some("n2"));
    story.is_sound();
    story.last("t2", "f1", "cancelled", None);
    story.on_task(Op::Cancel, "t2", None, Done, Some("cancelled"));
    story.breaks_only(Rule::TornFollowUp);
}

#[test]
fn catches_a_ghost() {
    let mut story = Story::sound();
    // Refused submits explain nothing.
    story.submit("k2", "t2", Fail);
    story.claim("t2", "k2", "2.b");
    story.result("t2", "2.b", "n2", Completed, Done, "completed");
    story.last("t2", "k2", "completed", Some("n2"));
    story.breaks_only(Rule::Ghost);
}

#[test]
fn catches_two_tasks_of_one_key() {
    let mut story = Story::sound();
    story.submit("k1", "t2", Done);
    story.claim("t2", "k1", "2.b");
    story.result("t2", "2.b", "n2", Completed, Done, "completed");
    story.last("t2", "k1", "completed", Some("n2"));
    story.breaks_only(Rule::Idempotency);
}

#[test]
fn catches_a_torn_batch() {
    let mut story = Story::sound();
    story.batch(&["b1", "b2"], Unknown);
    story.is_sound();
    story.on_task(Op::Cancel, "t2", None, Done, Some("cancelled"));
    story.last("t2", "b1", "cancelled", None);
    story.breaks_only(Rule::TornBatch);
}

#[test]
fn catches_a_torn_batch_that_was_mended_by_sending_it_again() {
    for (found, sound) in [(0, true), (1, false), (2, true)] {
        let mut story = Story::sound();
        story.batch(&["b1", "b2"], Unknown);
        story.batch(&["b1", "b2"], Done);
        for (record, task_id) in story.evidence.records.iter_mut().rev().zip(["t3", "t2"]) {
            record.deduplicated = Some(found);
            record.task_id = Some(task_id.into());
        }
        for (task_id, key) in [("t2", "b1"), ("t3", "b2")] {
            story.last(task_id, key, "cancelled", None);
            story.on_task(Op::Cancel, task_id, None, Done, Some("cancelled"));
        }
        if sound {
            story.is_sound();
        } else {
            story.breaks_only(Rule::TornBatch);
        }
    }
}

#[test]
fn catches_a_stale_token() {
    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    story.claim("t1", "k1", "1.a");
    story.now_us += 5_000;
    story.claim("t1", "k1", "2.b");
    story.result("t1", "1.a", "n1", Completed, Done, "completed");
    story.last("t1", "k1", "completed", Some("n1"));
    story.breaks_only(Rule::StaleToken);
}

#[test]
fn catches_a_forged_token() {
    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    story.claim("t1", "k1", "1.a");
    story.result("t1", "7.f", "n1", FailedFinal, Done, "dead_letter");
    story.last("t1", "k1", "dead_letter", None);
    story.breaks_only(Rule::ForgedToken);
}

#[test]
fn catches_tokens_that_shrink_or_repeat() {
    for second in ["1.b", "2.a"] {
        let mut story = Story::new();
        story.submit("k1", "t1", Done);
        story.claim("t1", "k1", "2.a");
        story.result("t1", "2.a", "n1", Released, Done, "queued");
        story.claim("t1", "k1", second);
        story.result("t1", second, "n1", Released, Fail, "");
        story.on_task(Op::Cancel, "t1", None, Done, Some("cancelled"));
        story.last("t1", "k1", "cancelled", None);
        story.breaks_only(Rule::TokenOrder);
    }
}

#[test]
fn catches_a_grant_within_a_lease() {
    let held_again_after = |wait_us: u64, renewed: bool| {
        let mut story = Story::new();
        story.submit("k1", "t1", Done);
        story.claim("t1", "k1", "1.a");
        story.now_us += 1_500;
        if renewed {
            story.on_task(Op::Heartbeat, "t1", Some("1.a"), Done, None);
        }
        story.now_us += wait_us;
        story.claim("t1", "k1", "2.b");
        story.result("t1", "2.b", "n2", Completed, Done, "completed");
        story.last("t1", "k1", "completed", Some("n2")).crash_count = 1;
        story
    };
    held_again_after(0, false).breaks_only(Rule::LeaseExclusivity);
    held_again_after(1_000, false).is_sound();
    held_again_after(1_000, true).breaks_only(Rule::LeaseExclusivity);
    held_again_after(3_000, true).is_sound();
}

#[test]
fn catches_two_results_of_one_attempt() {
    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    story.claim("t1", "k1", "1.a");
    story.result("t1", "1.a", "n1", FailedRetriable, Done, "scheduled");
    story.result("t1", "1.a", "n2", Completed, Done, "completed");
    story.last("t1", "k1", "completed", Some("n2"));
    story.breaks_only(Rule::DoubleEnd);
}

#[test]
fn catches_a_task_that_ends_twice() {
    let mut story = Story::sound();
    story.on_task(Op::Cancel, "t1", None, Done, Some("cancelled"));
    story.breaks(Rule::DoubleEnd);
    story.breaks(Rule::WrongEnd);
}

#[test]
fn catches_a_task_that_is_given_out_after_its_end() {
    let mut story = Story::sound();
    story.claim("t1", "k1", "2.b");
    story.breaks_only(Rule::EndedStaysEnded);
}

#[test]
fn catches_a_status_that_goes_back() {
    let mut story = Story::sound();
    story.on_task(Op::Read, "t1", None, Done, Some("queued"));
    story.breaks_only(Rule::EndedStaysEnded);
}

#[test]
fn catches_an_end_that_is_undone_by_the_last_crash() {
    let mut story = Story::sound();
    story.evidence.tasks[0].status = "queued".into();
    story.evidence.tasks[0].nonce = None;
    story.breaks(Rule::EndedStaysEnded);
    story.breaks(Rule::WrongEnd);
    story.breaks(Rule::Liveness);
}

#[test]
fn catches_another_result_than_the_accepted_one() {
    let mut story = Story::sound();
    story.evidence.tasks[0].nonce = Some("n0".into());
    story.breaks(Rule::WrongEnd);
    story.breaks(Rule::AtLeastOnce);
}

#[test]
fn catches_an_end_nobody_asked_for() {
    for (status, nonce) in [("completed", Some("n1")), ("cancelled", None), ("dead_letter", None), ("failed", None)] {
        let mut story = Story::new();
        story.submit("k1", "t1", Done);
        story.claim("t1", "k1", "1.a");
        story.result("t1", "1.a", "n1", Completed, Fail, "");
        story.last("t1", "k1", status, nonce);
        story.breaks_only(Rule::UnexplainedEnd);
    }
}

#[test]
fn crashes_and_used_up_retries_explain_a_dead_letter() {
    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    story.last("t1", "k1", "dead_letter", None).crash_count = 3;
    story.is_sound();

    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    for (token, nonce, status) in [("1.a", "n1", "scheduled"), ("2.b", "n2", "scheduled"), ("3.c", "n3", "dead_letter")]
    {
        story.claim("t1", "k1", token);
        story.result("t1", token, nonce, FailedRetriable, Done, status);
    }
    story.last("t1", "k1", "dead_letter", None).retry_count = 2;
    story.is_sound();
}

#[test]
fn catches_a_completion_without_a_run() {
    let mut story = Story::sound();
    story.evidence.runs[0].t_end_us = None;
    story.breaks_only(Rule::AtLeastOnce);
}

#[test]
fn catches_too_many_attempts() {
    let spoil: [fn(&mut FinalTask); 3] = [
        |task| task.retry_count = LIMITS.max_retries + 1,
        |task| task.crash_count = LIMITS.max_crashes + 1,
        |task| task.attempt = 2 + LIMITS.max_retries + LIMITS.max_crashes,
    ];
    for spoil in spoil {
        let mut story = Story::sound();
        spoil(&mut story.evidence.tasks[0]);
        story.breaks_only(Rule::Attempts);
    }
    let mut story = Story::sound();
    let run = story.evidence.runs[0].clone();
    story.evidence.runs.extend(std::iter::repeat_n(run, 6));
    story.breaks_only(Rule::Attempts);
}

#[test]
fn catches_a_task_that_never_ends() {
    let mut story = Story::sound();
    story.submit("k2", "t2", Done);
    story.last("t2", "k2", "queued", None);
    story.breaks_only(Rule::Liveness);
}

#[test]
fn catches_counters_that_disagree() {
    let agreeing = |settled| Counts {
        moment: "at the end".into(),
        settled,
        listed: [("completed".into(), 1), ("queued".into(), 2), ("scheduled".into(), 1)].into(),
        metrics: [("completed".into(), 1), ("queued".into(), 3), ("executing".into(), 0)].into(),
        stats_depth: 2,
        stats_executing: 0,
    };
    let judged = |counts: Counts| {
        let mut story = Story::sound();
        story.evidence.counts.push(counts);
        story
    };
    // One task became due between the two questions.
    judged(agreeing(false)).is_sound();
    judged(agreeing(true)).breaks_only(Rule::Agreement);
    let spoil: [fn(&mut Counts); 3] = [
        |counts| *counts.metrics.get_mut("completed").unwrap() += 1,
        |counts| *counts.metrics.get_mut("queued").unwrap() -= 1,
        |counts| counts.stats_depth = 9,
    ];
    for spoil in spoil {
        let mut counts = agreeing(false);
        spoil(&mut counts);
        judged(counts).breaks_only(Rule::Agreement);
    }
}

/// Two tasks that were submitted one after the other, and share something.
fn two_that_share(shared: &Shared) -> Story {
    let mut story = Story::new();
    for (key, task_id) in [("k1", "t1"), ("k2", "t2")] {
        story.submit(key, task_id, Done);
        story.evidence.shared.insert(key.into(), shared.clone());
    }
    story
}

fn line(skips: bool) -> Shared {
    Shared::Line { line: "line".into(), skips }
}

fn complete(story: &mut Story, task_id: &str, key: &str, token: &str) {
    let nonce = format!("n{token}");
    story.result(task_id, token, &nonce, Completed, Done, "completed");
    story.last(task_id, key, "completed", Some(&nonce));
}

#[test]
fn catches_more_at_once_than_allowed() {
    for (at_once, sound) in [(1, false), (2, true)] {
        let mut story = two_that_share(&Shared::AtMost(AtMost { group: "key".into(), at_once }));
        story.claim("t1", "k1", "1.a");
        story.claim("t2", "k2", "2.b");
        complete(&mut story, "t1", "k1", "1.a");
        complete(&mut story, "t2", "k2", "2.b");
        if sound {
            story.is_sound();
        } else {
            story.breaks_only(Rule::AtOnce);
        }
    }
}

#[test]
fn a_lease_that_may_have_ended_holds_no_limit() {
    for (wait_us, renewed, sound) in [(1_000, false, false), (2_500, false, true), (2_500, true, false)] {
        let mut story = two_that_share(&Shared::AtMost(AtMost { group: "key".into(), at_once: 1 }));
        story.claim("t1", "k1", "1.a");
        if renewed {
            story.now_us += 1_500;
            story.on_task(Op::Heartbeat, "t1", Some("1.a"), Done, None);
            story.now_us -= 1_500;
        }
        story.now_us += wait_us;
        story.claim("t2", "k2", "2.b");
        complete(&mut story, "t2", "k2", "2.b");
        story.now_us += 9_000;
        story.claim("t1", "k1", "3.c");
        complete(&mut story, "t1", "k1", "3.c");
        if sound {
            story.is_sound();
        } else {
            story.breaks_only(Rule::AtOnce);
        }
    }
}

#[test]
fn a_result_without_an_answer_may_have_made_room() {
    let mut story = two_that_share(&Shared::AtMost(AtMost { group: "key".into(), at_once: 1 }));
    story.claim("t1", "k1", "1.a");
    story.result("t1", "1.a", "n1.a", Completed, Unknown, "");
    story.claim("t2", "k2", "2.b");
    complete(&mut story, "t1", "k1", "1.a");
    complete(&mut story, "t2", "k2", "2.b");
    story.is_sound();
}

#[test]
fn catches_two_of_one_line_at_once() {
    let mut story = two_that_share(&line(false));
    story.claim("t1", "k1", "1.a");
    story.claim("t2", "k2", "2.b");
    complete(&mut story, "t1", "k1", "1.a");
    complete(&mut story, "t2", "k2", "2.b");
    story.breaks_only(Rule::Order);
}

#[test]
fn catches_a_broken_order() {
    for skips in [false, true] {
        let mut story = two_that_share(&line(skips));
        story.claim("t2", "k2", "1.a");
        complete(&mut story, "t2", "k2", "1.a");
        story.claim("t1", "k1", "2.b");
        complete(&mut story, "t1", "k1", "2.b");
        story.breaks_only(Rule::Order);
        // Submits that overlap have no order.
        story.evidence.records[1].t_invoke_us = story.evidence.records[0].t_complete_us;
        story.is_sound();
    }
}

#[test]
fn a_line_waits_for_another_attempt_unless_it_skips() {
    for skips in [false, true] {
        let mut story = two_that_share(&line(skips));
        story.claim("t1", "k1", "1.a");
        story.result("t1", "1.a", "n1", FailedRetriable, Done, "scheduled");
        story.claim("t2", "k2", "2.b");
        complete(&mut story, "t2", "k2", "2.b");
        story.claim("t1", "k1", "3.c");
        complete(&mut story, "t1", "k1", "3.c");
        if skips {
            story.is_sound();
        } else {
            story.breaks_only(Rule::Order);
        }
    }
}

#[test]
fn catches_nodes_that_disagree() {
    let said = |node: u64, completed| Counts {
        moment: format!("node {node}"),
        settled: true,
        listed: [("completed".into(), completed)].into(),
        metrics: [("completed".into(), completed)].into(),
        stats_depth: 0,
        stats_executing: 0,
    };
    let mut story = Story::sound();
    story.evidence.counts = vec![said(1, 1), said(2, 1)];
    story.is_sound();
    story.evidence.counts.push(said(3, 2));
    story.breaks_only(Rule::Agreement);
}

#[test]
fn catches_rows_that_disagree() {
    let judged = |rows: &[(&str, u64)]| {
        let mut story = Story::sound();
        story.evidence.rows = Some(rows.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect());
        story
    };
    judged(&[("live", 0), ("completed", 1)]).is_sound();
    judged(&[("live", 0), ("ended", 1)]).is_sound();
    judged(&[("live", 0), ("completed", 2)]).breaks_only(Rule::Agreement);
    judged(&[("live", 1), ("completed", 1)]).breaks_only(Rule::Agreement);
    judged(&[("live", 0)]).breaks_only(Rule::Agreement);
    judged(&[("live", 0), ("ended", 0)]).breaks_only(Rule::Agreement);
    judged(&[("live", 0), ("completed", 1), ("failed", 1)]).breaks_only(Rule::Agreement);
}

#[test]
fn a_lost_write_is_counted_and_explains_only_its_own_task() {
    let mut story = Story::sound();
    let from_us = story.now_us + 5;
    story.submit("k2", "t2", Done);
    story.evidence.doubts.push((from_us, story.now_us + 5));
    let (left, loss) = loss::split(&story.evidence, check(&story.evidence));
    assert_eq!((left, loss.submits, loss.results), (Vec::new(), 1, 0));
    // One that was acknowledged at another time must be there.
    story.submit("k3", "t3", Done);
    let (left, loss) = loss::split(&story.evidence, check(&story.evidence));
    assert_eq!(left.iter().map(|violation| violation.rule).collect::<Vec<_>>(), [Rule::Lost]);
    assert_eq!(loss.submits, 2);
}

#[test]
fn a_lost_result_is_counted() {
    let mut story = Story::new();
    story.submit("k1", "t1", Done);
    story.claim("t1", "k1", "1.a");
    let from_us = story.now_us + 5;
    story.result("t1", "1.a", "n1", Completed, Done, "completed");
    story.evidence.doubts.push((from_us, story.now_us + 5));
    story.now_us += 5_000;
    story.claim("t1", "k1", "2.b");
    story.result("t1", "2.b", "n2", Completed, Done, "completed");
    story.last("t1", "k1", "completed", Some("n2"));
    story.breaks(Rule::DoubleEnd);
    let (left, loss) = loss::split(&story.evidence, check(&story.evidence));
    assert_eq!((left, loss.submits, loss.results), (Vec::new(), 0, 1));
}
