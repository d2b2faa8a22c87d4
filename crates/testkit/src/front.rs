//! For a store in front of another: the verbs that it only passes on, by name, so that what it does itself stands out.

/// What the verbs of a store speak of, for where [`pass_on!`](crate::pass_on!) is used.
pub mod prelude {
    pub use std::future::Future;
    pub use std::pin::Pin;
    pub use std::time::Duration;

    pub use windlass_core::actor::Actor;
    pub use windlass_core::breaker::{Forced, Scope, View};
    pub use windlass_core::error_rules::ErrorRules;
    pub use windlass_core::event::Event;
    pub use windlass_core::filter::TaskFilter;
    pub use windlass_core::ids::{TaskId, WorkerId};
    pub use windlass_core::names::{QueueName, TaskType};
    pub use windlass_core::settings::{QueueChange, QueueSettings, Settings, TypeChange, TypeSettings};
    pub use windlass_core::store::{
        Amendment, Beaten, BreakerError, Cancelled, Capabilities, ChangeError, ClaimRequest, Claimed, Cursor, Each,
        Finish, Finished, Heartbeat, InboxItem, Intake, LaneStats, LeaseError, ListError, Page, ProgressReport,
        Requeue, SettingsError, Stats, StepReport, Store, StoreError, SubmitError, Submitted, Sweep, Waiting,
        WorkerError,
    };
    pub use windlass_core::task::{NewTask, Task};
    pub use windlass_core::time::Timestamp;
    pub use windlass_core::worker::{Worker, WorkerProfile};
}

/// Implements verbs of `Store` by calling them on another store, in an `impl` that has [`front::prelude`](crate::front::prelude) in scope.
///
/// `pass_on! { (Self::inner) submit claim }` calls the store that `inner(&self)` gives;
/// `pass_on! { (Self::inner, Self::watch) submit claim }` makes the call through `watch(&self, call).await`.
#[macro_export]
macro_rules! pass_on {
    ($via:tt $($verb:ident)+) => { $( $crate::pass_on! { @$verb $via } )+ };

    // A method as `async_trait` would write it.
    (($($via:path),+) $verb:ident($($name:ident: $of:ty),*) -> $answer:ty) => {
        fn $verb<'store, 'call>(&'store self, $($name: $of),*) -> Pin<Box<dyn Future<Output = $answer> + Send + 'call>>
        where
            'store: 'call,
            Self: 'call,
        {
            $crate::pass_on!(=> ($($via),+) self, $verb($($name),*))
        }
    };
    (=> ($to:path) $store:ident, $verb:ident($($name:ident),*)) => {
        Box::pin(async move { $to($store).$verb($($name),*).await })
    };
    (=> ($to:path, $around:path) $store:ident, $verb:ident($($name:ident),*)) => {
        Box::pin(async move { $around($store, $to($store).$verb($($name),*)).await })
    };

    (@submit $via:tt) => {
        $crate::pass_on! { $via submit(tasks: Vec<NewTask>) -> Result<Vec<Submitted>, SubmitError> }
    };
    (@inbox $via:tt) => {
        $crate::pass_on! { $via inbox(after: i64, limit: usize) -> Result<Vec<InboxItem>, StoreError> }
    };
    (@inbox_grown $via:tt) => { $crate::pass_on! { $via inbox_grown() -> () } };
    (@take_in $via:tt) => { $crate::pass_on! { $via take_in(items: Vec<Intake>) -> Each<Submitted, SubmitError> } };
    (@claim $via:tt) => { $crate::pass_on! { $via claim(request: ClaimRequest) -> Result<Claimed, WorkerError> } };
    (@finish $via:tt) => {
        $crate::pass_on! { $via finish(worker: WorkerId, results: Vec<Finish>) -> Each<Finished, LeaseError> }
    };
    (@heartbeat $via:tt) => { $crate::pass_on! { $via heartbeat(beat: Heartbeat) -> Result<Beaten, WorkerError> } };
    (@record_progress $via:tt) => {
        $crate::pass_on! { $via record_progress(worker: WorkerId, reports: Vec<ProgressReport>) -> Each<(), LeaseError> }
    };
    (@record_steps $via:tt) => {
        $crate::pass_on! { $via record_steps(worker: WorkerId, reports: Vec<StepReport>) -> Each<(), LeaseError> }
    };
    (@cancel $via:tt) => {
        $crate::pass_on! { $via cancel(tasks: Vec<TaskId>, by: Actor) -> Each<Cancelled, ChangeError> }
    };
    (@amend $via:tt) => {
        $crate::pass_on! { $via amend(task: TaskId, amendment: Amendment, by: Actor) -> Result<Result<(), ChangeError>, StoreError> }
    };
    (@requeue $via:tt) => {
        $crate::pass_on! { $via requeue(wishes: Vec<Requeue>, by: Actor) -> Each<(), ChangeError> }
    };
    (@bury $via:tt) => {
        $crate::pass_on! { $via bury(tasks: Vec<TaskId>, note: String, by: Actor) -> Each<(), ChangeError> }
    };
    (@discard $via:tt) => {
        $crate::pass_on! { $via discard(tasks: Vec<TaskId>, note: Option<String>, by: Actor) -> Each<(), ChangeError> }
    };
    (@make_due $via:tt) => { $crate::pass_on! { $via make_due(limit: usize) -> Result<Sweep, StoreError> } };
    (@lapse_leases $via:tt) => { $crate::pass_on! { $via lapse_leases(limit: usize) -> Result<Sweep, StoreError> } };
    (@time_out $via:tt) => { $crate::pass_on! { $via time_out(limit: usize) -> Result<Sweep, StoreError> } };
    (@expire $via:tt) => { $crate::pass_on! { $via expire(limit: usize) -> Result<Sweep, StoreError> } };
    (@prune $via:tt) => { $crate::pass_on! { $via prune(limit: usize) -> Result<Sweep, StoreError> } };
    (@settle_intents $via:tt) => {
        $crate::pass_on! { $via settle_intents(limit: usize) -> Result<Sweep, StoreError> }
    };
    (@forgive $via:tt) => { $crate::pass_on! { $via forgive(span: Duration) -> Result<(), StoreError> } };
    (@get $via:tt) => { $crate::pass_on! { $via get(tasks: Vec<TaskId>) -> Result<Vec<Option<Task>>, StoreError> } };
    (@list $via:tt) => {
        $crate::pass_on! { $via list(filter: TaskFilter, limit: usize, after: Option<Cursor>) -> Result<Page<Task>, ListError> }
    };
    (@history $via:tt) => { $crate::pass_on! { $via history(task: TaskId) -> Result<Vec<Event>, StoreError> } };
    (@events $via:tt) => {
        $crate::pass_on! { $via events(after: Option<Cursor>, limit: usize) -> Result<Page<Event>, ListError> }
    };
    (@until_ended $via:tt) => { $crate::pass_on! { $via until_ended(task: TaskId) -> Result<(), StoreError> } };
    (@waiting_for $via:tt) => {
        $crate::pass_on! { $via waiting_for(task: TaskId) -> Result<Option<Waiting>, StoreError> }
    };
    (@lanes $via:tt) => { $crate::pass_on! { $via lanes() -> Result<Vec<LaneStats>, StoreError> } };
    (@stats $via:tt) => { $crate::pass_on! { $via stats() -> Result<Stats, StoreError> } };
    (@register_worker $via:tt) => {
        $crate::pass_on! { $via register_worker(profile: WorkerProfile) -> Result<(), WorkerError> }
    };
    (@workers $via:tt) => { $crate::pass_on! { $via workers() -> Result<Vec<Worker>, StoreError> } };
    (@drain_worker $via:tt) => { $crate::pass_on! { $via drain_worker(worker: WorkerId) -> Result<(), WorkerError> } };
    (@deregister_worker $via:tt) => {
        $crate::pass_on! { $via deregister_worker(worker: WorkerId) -> Result<(), WorkerError> }
    };
    (@forget_workers $via:tt) => {
        $crate::pass_on! { $via forget_workers(seen_before: Timestamp) -> Result<Sweep, StoreError> }
    };
    (@change_queue $via:tt) => {
        $crate::pass_on! { $via change_queue(queue: QueueName, change: QueueChange) -> Result<QueueSettings, SettingsError> }
    };
    (@change_type $via:tt) => {
        $crate::pass_on! { $via change_type(task_type: TaskType, change: TypeChange) -> Result<TypeSettings, SettingsError> }
    };
    (@clear_queue $via:tt) => { $crate::pass_on! { $via clear_queue(queue: QueueName) -> Result<(), SettingsError> } };
    (@clear_type $via:tt) => { $crate::pass_on! { $via clear_type(task_type: TaskType) -> Result<(), SettingsError> } };
    (@change_error_rules $via:tt) => {
        $crate::pass_on! { $via change_error_rules(rules: ErrorRules) -> Result<(), SettingsError> }
    };
    (@breakers $via:tt) => { $crate::pass_on! { $via breakers() -> Result<Vec<View>, StoreError> } };
    (@force_breaker $via:tt) => {
        $crate::pass_on! { $via force_breaker(scope: Scope, forced: Option<Forced>) -> Result<View, BreakerError> }
    };
    (@replay_settled $via:tt) => {
        $crate::pass_on! { $via replay_settled(task_type: TaskType, since: Timestamp) -> Result<(), StoreError> }
    };
    (@lead $via:tt) => { $crate::pass_on! { $via lead(span: Duration) -> Result<bool, StoreError> } };
    (@resign $via:tt) => { $crate::pass_on! { $via resign() -> () } };
    (@check $via:tt) => { $crate::pass_on! { $via check() -> Result<(), StoreError> } };
    (@close $via:tt) => { $crate::pass_on! { $via close() -> () } };
}
