//! Calls that travel together.
//!
//! * **Many subjects in one call**: checks under one policy of fixed windows leave at once while fewer than
//!   four such calls are on their way. Others gather until one of those is back, has been away for
//!   [`LATE`], or a call is full. Those of other policies leave at once.
//! * **One subject, one call at a time**, but for the one who left alone: who asks for a subject whose call
//!   is in flight waits for it, and leaves with all who do. They are decided as if they had come one after
//!   the other, first come first served.
//! * **Cancel safe**: who gives up before the departure is not charged; who gives up later may have
//!   been. The others do not notice.
//! * **Nothing is sent twice**: if a call fails, all who travelled with it learn why.
//! * **In halves**: those who leave when no call is in flight leave in two, and answers that come together are
//!   told one after the other, so that the server works while we do. Of many callers of one subject a quarter
//!   is told first, and leaves again with those who have come meanwhile; the others are told after that.
//! * **Bounded**: so many subjects and so many costs in one call, so that the server is not kept from
//!   others. The deadline of each caller is its own; a call that stays away for as long as a connection
//!   may owe an answer is given up.

mod batch;
mod fan_out;
mod queue;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use batch::Question;
use batch::{Batch, Caller, Costs, Run, batches, fail, take_run};
use fan_out::{Telling, Told};
pub(crate) use fan_out::{wait, wait_for_part};
use queue::{Line, can_gather};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::decision::Decision;
use crate::model::Mode;
use crate::model::StoreError;
use crate::model::{Cost, FailureKind};
use crate::policy::Policy;
use crate::store::redis::RedisStore;
use crate::store::redis::encoding::reply::{Answer, Asked};
use crate::store::redis::encoding::reply_reader;
use crate::store::redis::shortcuts::denial_cache::Asking;
use crate::store::redis::subject_key::{Who, WhoRef};

/// Subjects in one call: some 100 µs of the server.
const MOST_SUBJECTS: usize = 32;

/// Fewer are not divided among two calls.
const LEAST_SUBJECTS: usize = 8;

/// A call that is away for longer is not waited for: the server is far, or gone.
const LATE: Duration = Duration::from_millis(5);

/// Who waits, and who is in flight.
pub(crate) struct Combiner {
    line: Mutex<Line>,
    /// On a cluster subjects are on many servers, and travel alone.
    pub(crate) most_subjects: usize,
    /// How long a call may stay away.
    patience: Duration,
    runtime: Handle,
}

impl Combiner {
    pub(crate) fn new(is_cluster: bool, patience: Duration) -> Self {
        let most_subjects = if is_cluster { 1 } else { MOST_SUBJECTS };
        Self { line: Mutex::default(), most_subjects, patience, runtime: Handle::current() }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RedisStore {
    /// Gets in line, if anybody is under way.
    pub(crate) fn join(
        &self,
        combiner: &Combiner,
        who: WhoRef<'_>,
        policy: &Policy,
        question: Question,
        asking: Option<Asking>,
    ) -> Joined {
        let mut line = combiner.lock();
        if line.subjects.is_empty() && !line.has_lone {
            line.has_lone = true;
            return Joined::Alone(Lone(self.clone()));
        }
        let (tell, told) = oneshot::channel();
        let caller = Caller { policy: policy.clone(), question, asking, tell };
        if let Some(waiting) = line.subjects.get_mut(&who) {
            waiting.push_back(caller);
        } else {
            let who = who.to_owned();
            line.subjects.insert(who.clone(), VecDeque::from([caller]));
            line.make_ready(who, combiner.most_subjects);
            self.depart_soon(combiner, line);
        }
        Joined::Waiting(told)
    }

    /// Checks `cost` in a call of its own.
    pub(crate) async fn check_and_note(
        &self,
        who: WhoRef<'_>,
        policy: &Policy,
        cost: Cost,
        asking: Option<Asking>,
    ) -> Result<Decision, StoreError> {
        let command = self.inner.commands.check(&[who], policy, cost, 1, 1)?;
        let reply = self.send(command).await?;
        let asked = Asked { policy, mode: Mode::Check, cost };
        let answer = reply_reader::read_one(&reply, 1, asked)?;
        self.note_healed(answer.healed);
        let decision = answer.decision(0, asked);
        self.note_denial(who, &decision, asking);
        Ok(decision)
    }

    /// If somebody is due, sends them on their way as soon as all who are just getting ready are.
    fn depart_soon(&self, combiner: &Combiner, mut line: MutexGuard<'_, Line>) {
        if !line.is_first_to_depart(combiner.most_subjects) {
            return;
        }
        // In a runtime that has ended the departure ends at once, and locks the line.
        drop(line);
        let mut departure = Departure(Some(self.clone()));
        combiner.runtime.spawn(async move {
            if let Some(store) = departure.0.take() {
                store.depart();
            }
        });
    }

    fn depart(self) {
        let Some(combiner) = &self.inner.combiner else { return };
        let (mut runs, mut most_subjects) = (Vec::new(), combiner.most_subjects);
        {
            let mut line = combiner.lock();
            line.is_departing = false;
            let gathered = line.gathered(most_subjects);
            if line.in_flight == 0 {
                let half = gathered.div_ceil(2).max(LEAST_SUBJECTS);
                most_subjects = most_subjects.min(half);
            }
            let mut leaving = std::mem::take(&mut line.ready);
            leaving.extend(line.gathering.drain(..gathered));
            for who in leaving {
                let run = line.subjects.get_mut(&who.as_ref()).and_then(take_run);
                match run {
                    Some((costs, callers)) => runs.push((costs, Run { who, callers })),
                    // All have given up.
                    None => drop(line.subjects.swap_remove(&who.as_ref())),
                }
            }
        }
        let batches = batches(runs, most_subjects);
        let count = |batch: &&Batch| can_gather(&batch.policy, combiner.most_subjects);
        combiner.lock().in_flight += batches.iter().filter(count).count();
        for batch in batches {
            let is_waited_for = count(&&batch);
            self.carry_soon(combiner, batch, is_waited_for);
        }
    }

    fn carry_soon(&self, combiner: &Combiner, batch: Batch, is_waited_for: bool) {
        let who = batch.runs.iter().map(|run| run.who.clone()).collect();
        // Made here: who travels in a runtime that has ended is let go at once.
        let leaving = Leaving { store: self.clone(), who, is_waited_for };
        combiner.runtime.spawn(carry(leaving, batch));
    }

    /// Tells those who travelled together. Returns those that were not decided.
    async fn tell_all(
        &self,
        answers: Result<Vec<Option<Answer>>, StoreError>,
        costs: Costs,
        runs: Vec<Run>,
        leaving: &mut Leaving,
    ) -> Vec<Run> {
        let (mut undecided, is_alone) = (Vec::new(), runs.len() == 1);
        match answers {
            Ok(answers) => {
                for (run, answer) in runs.into_iter().zip(answers) {
                    let Some(answer) = answer else {
                        undecided.push(run);
                        continue;
                    };
                    let mut telling = Telling::new(self, run, answer, costs);
                    if is_alone && telling.are_many() {
                        telling.tell_some();
                        // They ask again,
                        tokio::task::yield_now().await;
                        // and leave with those who wait by now,
                        leaving.let_go();
                        // before the others are told.
                        tokio::task::yield_now().await;
                    }
                    telling.tell_all();
                }
            }
            Err(error) => runs.into_iter().for_each(|run| fail(run, &error)),
        }
        undecided
    }

    async fn ask(
        &self,
        policy: &Policy,
        costs: Costs,
        runs: &[Run],
    ) -> Result<Vec<Option<Answer>>, StoreError> {
        let commands = &self.inner.commands;
        let who: Vec<WhoRef<'_>> = runs.iter().map(|run| run.who.as_ref()).collect();
        let (command, cost, calls) = match costs {
            Costs::Alike { cost, calls, least } => {
                (commands.check(&who, policy, cost, calls, least)?, cost, calls)
            }
            Costs::Mixed => {
                let callers = runs.iter().flat_map(|run| &run.callers);
                let costs: Vec<Cost> = callers.map(|caller| caller.question.cost()).collect();
                let calls = u16::try_from(costs.len()).unwrap_or(u16::MAX);
                (commands.check_costs(who[0], policy, &costs)?, Cost::ZERO, calls)
            }
        };
        let reply = self.send(command).await?;
        let asked = Asked { policy, mode: Mode::Check, cost };
        reply_reader::read(&reply, runs.len(), calls, asked)
    }

    pub(crate) fn note_denial(&self, who: WhoRef<'_>, decision: &Decision, asking: Option<Asking>) {
        if let (Some(denials), Some(asking)) = (&self.inner.denials, asking) {
            if !decision.is_allowed() {
                denials.note(who, decision, asking, self.inner.watch.now());
            } else if asking.is_known {
                denials.allowed(who, asking);
            }
        }
    }
}

/// Takes a batch to the server, and tells everybody in it.
async fn carry(mut leaving: Leaving, Batch { policy, costs, runs }: Batch) {
    let store = leaving.store.clone();
    let Some(combiner) = &store.inner.combiner else { return };
    let is_alone = runs.len() == 1;
    let answers = {
        let mut answers = pin!(store.ask(&policy, costs, &runs));
        match tokio::time::timeout(LATE, answers.as_mut()).await {
            Ok(answers) => answers,
            Err(_) => {
                leaving.stop_being_waited_for();
                let patience = combiner.patience.saturating_sub(LATE);
                let answers = tokio::time::timeout(patience, answers).await;
                answers.unwrap_or_else(|_| Err(StoreError::new(FailureKind::TimedOut)))
            }
        }
    };
    // Answers that come together are not told together: who was told first asks again, and is on the way
    // before the next are told. Else the halves would become one, and server and client take turns.
    let is_first = !std::mem::replace(&mut combiner.lock().is_telling, true);
    if !is_first {
        tokio::task::yield_now().await;
    }
    for run in store.tell_all(answers, costs, runs, &mut leaving).await {
        if is_alone {
            fail(run, &reply_reader::undecided());
        } else {
            // What is not decided in company, by which nothing has changed, goes again, each alone.
            leaving.who.retain(|who| *who != run.who);
            let batch = Batch { policy: policy.clone(), costs, runs: vec![run] };
            store.carry_soon(combiner, batch, false);
        }
    }
    drop(leaving);
    if is_first {
        tokio::task::yield_now().await;
        combiner.lock().is_telling = false;
    }
}

/// What comes of getting in line.
pub(crate) enum Joined {
    /// Nobody waits for this one, who leaves without company: its thread may have other things to do than
    /// to go on with it.
    Alone(Lone),
    Waiting(Told),
}

/// One who left without company.
pub(crate) struct Lone(RedisStore);

impl Drop for Lone {
    fn drop(&mut self) {
        if let Some(combiner) = &self.0.inner.combiner {
            combiner.lock().has_lone = false;
        }
    }
}

/// The task that sends those who are ready on their way. If its runtime has ended, nobody does, and who
/// waits is let go.
struct Departure(Option<RedisStore>);

impl Drop for Departure {
    fn drop(&mut self) {
        let Some(store) = self.0.take() else { return };
        let Some(combiner) = &store.inner.combiner else { return };
        let mut line = combiner.lock();
        line.is_departing = false;
        let Line { subjects, ready, gathering, .. } = &mut *line;
        for who in ready.drain(..).chain(gathering.drain(..)) {
            subjects.swap_remove(&who.as_ref());
        }
    }
}

/// Subjects whose call is in flight. When it is back, or given up, those who wait leave.
struct Leaving {
    store: RedisStore,
    who: Vec<Who>,
    is_waited_for: bool,
}

impl Leaving {
    /// Those who wait for this call may leave.
    fn let_go(&mut self) {
        let Some(combiner) = &self.store.inner.combiner else { return };
        let mut line = combiner.lock();
        line.in_flight -= usize::from(std::mem::take(&mut self.is_waited_for));
        for who in std::mem::take(&mut self.who) {
            if line.subjects.get(&who.as_ref()).is_some_and(|waiting| !waiting.is_empty()) {
                line.make_ready(who, combiner.most_subjects);
            } else {
                line.subjects.swap_remove(&who.as_ref());
            }
        }
        self.store.depart_soon(combiner, line);
    }

    /// Others do not wait for this call any more.
    fn stop_being_waited_for(&mut self) {
        let Some(combiner) = &self.store.inner.combiner else { return };
        let mut line = combiner.lock();
        line.in_flight -= usize::from(std::mem::take(&mut self.is_waited_for));
        self.store.depart_soon(combiner, line);
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.let_go();
    }
}
