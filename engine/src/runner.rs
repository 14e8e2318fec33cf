//! Plans in, tokens out: the ranks of a model, each on a thread of its own, so that the host decides about the next step while
//! this one runs.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reference::ops::{Ops, OpsError};
use thiserror::Error;
use transfer::exchange::{Agreed, Chain, ExchangeError, PortError, Report, merge};

use crate::batch::{Batch, MissingPage};
use crate::collective::{Collective, Solo, ThreadRank};
use crate::geometry::CacheShape;
use crate::handover::{Export, ObeyError, Order, RankExchange, RankParts, Work};
use crate::ids::TokenId;
use crate::model::{LayerHook, LoadError, Model};
use crate::progress::Part;
use crate::step::{Sampled, StepEntry, StepOutput, StepPlan};

/// Why a step did not run.
#[derive(Debug, Error)]
pub enum RunError {
    /// Weights.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An operation.
    #[error("step {step}, rank {rank}: {source}")]
    Ops {
        /// Step.
        step: u64,
        /// Rank.
        rank: u32,
        /// What failed.
        source: OpsError,
    },
    /// The plan.
    #[error("step {step}: {source}")]
    Plan {
        /// Step.
        step: u64,
        /// What is missing.
        source: MissingPage,
    },
    /// A plan that takes a token from a step that did not run before it.
    #[error("step {step}: takes sample {row} of the step before, which has {samples}")]
    NoSample {
        /// Step.
        step: u64,
        /// Row asked for.
        row: i32,
        /// Rows there are.
        samples: usize,
    },
    /// Ranks that should hold equal bytes sampled different tokens.
    #[error("rank {rank} sampled other tokens than rank 0 in the same step")]
    RanksDisagree {
        /// Rank.
        rank: usize,
    },
    /// Nothing was handed over.
    #[error("wait: expected a step in flight, got none")]
    Idle,
    /// Ranks that have not carried out the same decisions.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The rooms of a rank are gone.
    #[error("rank {rank}: {source}")]
    Port {
        /// Rank.
        rank: u32,
        /// What it says.
        source: PortError,
    },
    /// Ranks that did not answer in time.
    #[error("no answer of rank {} within {waited:?}", .missing.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    Deadline {
        /// Who is missing.
        missing: Vec<u32>,
        /// How long the others were kept waiting.
        waited: Duration,
    },
    /// A rank's thread is gone.
    #[error("a rank has stopped{}", .0.as_deref().map(|why| format!(": {why}")).unwrap_or_default())]
    Stopped(Option<String>),
}

/// Runs the steps of one rank.
#[derive(Debug)]
pub struct RankRunner<O: Ops> {
    model: Model<O>,
    shape: CacheShape,
    rank: u32,
    samples: Vec<i32>,
    exchange: RankExchange,
}

impl<O: Ops> RankRunner<O> {
    /// A rank with its model; `shape` is that of the pools behind the plans.
    pub fn new(model: Model<O>, shape: CacheShape, rank: u32) -> Self {
        Self { model, shape, rank, samples: Vec::new(), exchange: RankExchange::default() }
    }

    /// The model.
    pub fn model(&self) -> &Model<O> {
        &self.model
    }

    /// One exchange: commands, pages from elsewhere, the step, pages to host memory, and then what this rank sees.
    pub fn carry_out(&mut self, order: &Order) -> Result<(StepOutput, Report), RunError> {
        let (rank, step) = (self.rank, order.plan.step);
        self.exchange.obey(order).map_err(|error| match error {
            ObeyError::Exchange(error) => RunError::Exchange(error),
            ObeyError::Port(source) => RunError::Port { rank, source },
        })?;
        let failed = |source| RunError::Ops { step, rank, source };
        let (ops, caches) = self.model.cache_parts();
        self.exchange.before_step(ops, caches, order).map_err(failed)?;
        let output =
            if order.plan.entries.is_empty() { StepOutput::default() } else { self.step(&order.plan, &order.exports)? };
        let (ops, caches) = self.model.cache_parts();
        self.exchange.behind_step(ops, caches, order).map_err(failed)?;
        Ok((output, self.exchange.report(rank)))
    }

    /// Runs a step: forward, samples, and the draft layer where there is one.
    pub fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, RunError> {
        self.step(plan, &[])
    }

    fn step(&mut self, plan: &StepPlan, exports: &[Export]) -> Result<StepOutput, RunError> {
        let (step, rank) = (plan.step, self.rank);
        let failed = |source| RunError::Ops { step, rank, source };
        let mut batch = Batch::new(plan, &self.shape).map_err(|source| RunError::Plan { step, source })?;
        for (id, &row) in batch.ids.iter_mut().zip(&batch.id_rows).filter(|(_, row)| **row >= 0) {
            let samples = self.samples.len();
            *id = *self.samples.get(row as usize).ok_or(RunError::NoSample { step, row, samples })?;
        }
        let mut hook = self.exchange.hook(&batch.pages.read, exports);
        let mut hook = hook.as_mut().map(|hook| hook as &mut dyn LayerHook<O>);
        let samples = match &mut hook {
            None => self.model.forward(&batch),
            Some(hook) => self.model.forward_around(&batch, *hook),
        };
        let samples = samples.map_err(failed)?;
        // Before the draft layer, whose logits take the place of these.
        let undefined = self.model.undefined(&samples).map_err(failed)?;
        let drafts = if self.model.drafts() {
            let next_ids = next_ids(plan, &batch, &samples);
            let drafts = match &mut hook {
                None => self.model.draft(&batch, &next_ids),
                Some(hook) => self.model.draft_around(&batch, &next_ids, *hook),
            };
            drafts.map_err(failed)?
        } else {
            Vec::new()
        };
        let output = output(plan, &samples, &drafts, &undefined);
        self.samples = samples;
        Ok(output)
    }
}

/// The token behind every token: from the text where it has one, from the samples elsewhere.
fn next_ids(plan: &StepPlan, batch: &Batch, samples: &[i32]) -> Vec<i32> {
    let mut next = batch.next_ids.clone();
    for (entry, record) in plan.entries.iter().enumerate() {
        if !record.emits {
            continue;
        }
        let last = batch.cu_seqlens[entry] as usize + record.tokens.len() - 1;
        let row = plan.sample_row(entry) as usize;
        let rows = StepEntry::num_samples(record) as usize;
        next[last..last + rows].copy_from_slice(&samples[row..row + rows]);
    }
    next
}

/// Which samples hold: the one behind a draft only where the draft was right.
fn output(plan: &StepPlan, samples: &[i32], drafts: &[i32], undefined_rows: &[usize]) -> StepOutput {
    let id = |sample: i32| TokenId(sample as u32);
    let mut row = 0;
    let (mut sampled, mut undefined) = (Vec::new(), Vec::new());
    for entry in &plan.entries {
        let rows = StepEntry::num_samples(entry) as usize;
        if entry.emits {
            let token = id(samples[row]);
            let accepted = entry.draft == Some(token);
            let used = row..=row + usize::from(accepted);
            if undefined_rows.iter().any(|row| used.contains(row)) {
                undefined.push(sampled.len());
            }
            sampled.push(Sampled {
                token,
                after_draft: accepted.then(|| id(samples[row + 1])),
                next_draft: drafts.get(row + usize::from(accepted)).copied().map(id),
            });
        }
        row += rows;
    }
    StepOutput { sampled, undefined }
}

type Answer = (u32, Result<(StepOutput, Report), RunError>);

/// All ranks of a model.
#[derive(Debug)]
pub struct Runner {
    orders: Vec<Sender<Arc<Order>>>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
    /// Steps that wait at every rank, and layers that it has done.
    /// Of the ranks, then of their copy engines.
    parts: Vec<Arc<Part>>,
    /// Answers by rank that no step has been gathered from yet.
    early: Vec<VecDeque<(StepOutput, Report)>>,
    in_flight: usize,
    /// Why no step runs any more: after a failure the ranks no longer stand at the same step.
    stopped: Option<String>,
    chain: Chain,
    deadline: Option<Duration>,
    /// A rank did not answer in time, and may never.
    abandoned: bool,
}

impl Runner {
    /// Starts `ranks` threads; `make` builds a rank's model on its thread. Returns when all are ready, or the first reason
    /// why one is not.
    pub fn start<O, F>(ranks: u32, shape: CacheShape, make: F) -> Result<Self, RunError>
    where
        O: Ops + 'static,
        F: Fn(u32, Box<dyn Collective<O>>) -> Result<Model<O>, RunError> + Send + Sync + 'static,
    {
        Self::start_with_parts(ranks, shape, Vec::new(), make)
    }

    /// [`Runner::start`] where rank `i` takes `rank_parts[i]` along.
    pub fn start_with_parts<O, F>(
        ranks: u32,
        shape: CacheShape,
        rank_parts: Vec<RankParts>,
        make: F,
    ) -> Result<Self, RunError>
    where
        O: Ops + 'static,
        F: Fn(u32, Box<dyn Collective<O>>) -> Result<Model<O>, RunError> + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let (answer, answers) = channel();
        let group: Vec<Option<ThreadRank>> = match ranks {
            0 | 1 => vec![None],
            _ => ThreadRank::group(ranks).into_iter().map(Some).collect(),
        };
        let early = vec![VecDeque::new(); group.len()];
        let (chain, deadline, stopped) = (Chain::default(), None, None);
        let (orders, threads, parts) = (Vec::new(), Vec::new(), Vec::new());
        let (in_flight, abandoned) = (0, false);
        let mut runner =
            Self { orders, answers, threads, parts, early, in_flight, stopped, chain, deadline, abandoned };
        let (mut rank_parts, mut copiers) = (rank_parts.into_iter(), Vec::new());
        for (rank, end) in group.into_iter().enumerate() {
            let (orders, inbox) = channel::<Arc<Order>>();
            let rank_parts = rank_parts.next().unwrap_or_default();
            let (make, answer) = (Arc::clone(&make), answer.clone());
            // A rank waits for its copies, inside a step too.
            let copier: Vec<Arc<Part>> = rank_parts.host.iter().map(|host| Arc::clone(host.part())).collect();
            let part = Part::new(format!("rank {rank}"), copier.clone());
            runner.parts.push(Arc::clone(&part));
            copiers.extend(copier);
            let body = move || {
                let collective: Box<dyn Collective<O>> = match end {
                    Some(end) => Box::new(end),
                    None => Box::new(Solo),
                };
                let rank = rank as u32;
                // Nothing of the rank is used after a panic. Without an answer the host would wait for this rank for as long
                // as another one lives.
                let served = catch_unwind(AssertUnwindSafe(|| {
                    let exchange = RankExchange::new(rank_parts);
                    serve(rank, shape, exchange, || make(rank, collective), &inbox, &answer, &part);
                }));
                if let Err(panic) = served {
                    let why = format!("rank {rank} panicked: {}", words(panic.as_ref()));
                    // The host may be gone.
                    let _ = answer.send((rank, Err(RunError::Stopped(Some(why)))));
                }
            };
            let named = std::thread::Builder::new().name(format!("rank {rank}"));
            let thread = named.spawn(body).map_err(|e| RunError::Stopped(Some(e.to_string())))?;
            runner.orders.push(orders);
            runner.threads.push(thread);
        }
        runner.parts.extend(copiers);
        drop(answer);
        runner.gather(None)?;
        Ok(runner)
    }

    /// From now on, waits no longer than this for the answers to one step.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = Some(deadline);
    }

    /// Hands a step to every rank.
    ///
    /// # Errors
    /// A rank has stopped, now or before.
    pub fn submit(&mut self, plan: StepPlan) -> Result<(), RunError> {
        self.submit_work(plan.into()).map(drop)
    }

    /// Hands a step to every rank, with what goes along; the number of the decision.
    ///
    /// # Errors
    /// A rank has stopped, now or before.
    pub fn submit_work(&mut self, work: Work) -> Result<u64, RunError> {
        self.check_running()?;
        let Work { plan, commands, imports, exports, host } = work;
        let decision = self.chain.decide(commands);
        let number = decision.number;
        let order = Arc::new(Order { plan, decision, imports, exports, host });
        let gone = self.orders.iter().zip(&self.parts).any(|(orders, part)| {
            part.arrive();
            orders.send(Arc::clone(&order)).is_err()
        });
        if gone {
            let error = self.why_stopped();
            return Err(self.stop(error));
        }
        self.in_flight += 1;
        Ok(number)
    }

    /// How far every rank is, and then every rank's copies to and from host memory.
    pub fn parts(&self) -> &[Arc<Part>] {
        &self.parts
    }

    /// Steps handed over and not waited for.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Waits for the oldest step in flight.
    ///
    /// # Errors
    /// What stopped it; every later step fails too. Or there is no step to wait for.
    pub fn wait(&mut self) -> Result<StepOutput, RunError> {
        self.wait_agreed().map(|(output, _)| output)
    }

    /// [`Runner::wait`], with what the ranks saw together behind that step.
    ///
    /// # Errors
    /// As [`Runner::wait`].
    pub fn wait_agreed(&mut self) -> Result<(StepOutput, Agreed), RunError> {
        self.check_running()?;
        self.in_flight = self.in_flight.checked_sub(1).ok_or(RunError::Idle)?;
        self.gather(self.deadline).map_err(|error| self.stop(error))
    }

    fn check_running(&self) -> Result<(), RunError> {
        self.stopped.as_ref().map_or(Ok(()), |why| Err(RunError::Stopped(Some(why.clone()))))
    }

    fn stop(&mut self, error: RunError) -> RunError {
        self.stopped = Some(error.to_string());
        error
    }

    /// One answer of every rank.
    fn gather(&mut self, deadline: Option<Duration>) -> Result<(StepOutput, Agreed), RunError> {
        let start = Instant::now();
        while self.early.iter().any(VecDeque::is_empty) {
            let (rank, answer) = match deadline {
                None => self.answers.recv().map_err(|_| RunError::Stopped(None))?,
                Some(deadline) => match self.answers.recv_timeout(deadline.saturating_sub(start.elapsed())) {
                    Ok(answer) => answer,
                    Err(RecvTimeoutError::Disconnected) => return Err(RunError::Stopped(None)),
                    Err(RecvTimeoutError::Timeout) => {
                        self.abandoned = true;
                        return Err(self.missing(deadline));
                    }
                },
            };
            self.early[rank as usize].push_back(answer?);
        }
        let (outputs, reports): (Vec<_>, Vec<_>) = self.early.iter_mut().filter_map(VecDeque::pop_front).unzip();
        let agreed = merge(&reports)?;
        let mut outputs = outputs.into_iter();
        let first = outputs.next().unwrap_or_default();
        match outputs.position(|output| output != first) {
            Some(at) => Err(RunError::RanksDisagree { rank: at + 1 }),
            None => Ok((first, agreed)),
        }
    }

    fn missing(&self, waited: Duration) -> RunError {
        let missing = (0..).zip(&self.early).filter(|(_, early)| early.is_empty()).map(|(rank, _)| rank);
        RunError::Deadline { missing: missing.collect(), waited }
    }

    fn why_stopped(&self) -> RunError {
        match self.answers.try_iter().find_map(|(_, answer)| answer.err()) {
            Some(error) => error,
            None => RunError::Stopped(None),
        }
    }
}

impl Drop for Runner {
    /// Ends the ranks after the steps in flight. Those that were given up are left alone: whoever waited for a rank that does not
    /// come back could not say why it ended.
    fn drop(&mut self) {
        self.orders.clear();
        if self.abandoned {
            return;
        }
        for thread in self.threads.drain(..) {
            // A rank that panicked has been reported by its missing answer.
            let _ = thread.join();
        }
    }
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

fn serve<O: Ops>(
    rank: u32,
    shape: CacheShape,
    exchange: RankExchange,
    make: impl FnOnce() -> Result<Model<O>, RunError>,
    orders: &Receiver<Arc<Order>>,
    answer: &Sender<Answer>,
    part: &Arc<Part>,
) {
    let mut runner = match make() {
        Ok(mut model) => {
            model.report(Arc::clone(part));
            RankRunner { exchange, ..RankRunner::new(model, shape, rank) }
        }
        Err(error) => {
            let _ = answer.send((rank, Err(error)));
            return;
        }
    };
    if answer.send((rank, Ok((StepOutput::default(), Report { rank, ..Report::default() })))).is_err() {
        return;
    }
    while let Ok(order) = orders.recv() {
        let output = runner.carry_out(&order).map(|(output, report)| Some((output, runner.exchange.hand_in(report)?)));
        // Work whose answer is kept back is not finished.
        let Some(output) = output.transpose() else { continue };
        part.leave();
        let failed = output.is_err();
        if answer.send((rank, output)).is_err() || failed {
            return;
        }
    }
}
