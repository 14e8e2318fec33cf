//! Sessions of several turns, many at once, half of whose first prompt is common to a quarter of them: their tokens against those
//! of one process that computes every prompt anew.

use super::servers::{Extra, Server, Servers, clap_word, options};
use super::{Answer, DeploymentArgs, ExperimentError, tokens};
use crate::e2e::http::Connection;
use clap::{Args, ValueEnum};
use reference::rng::Rng;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Different beginnings.
const BEGINNINGS: u64 = 4;
/// Tokens of a beginning: a page of the window and more, so that later sessions find it in the prefix cache.
const BEGINNING_TOKENS: u64 = 150;

/// Options of `corruption`.
#[derive(Debug, Clone, Args)]
pub struct CorruptionArgs {
    /// Deployment.
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// Sessions.
    #[arg(long, default_value_t = 600, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub sessions: u64,
    /// Sessions at a time.
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=280))]
    pub concurrency: u32,
    /// Turns of a session.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub turns: u32,
    /// Seed of the prompts.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Format of the index keys.
    #[arg(long, value_enum, default_value_t = Keys::Fp8)]
    pub index_k: Keys,
    /// Only this: no unit waits for its index keys, which are late. Wrong texts are then what is expected.
    #[arg(long, conflicts_with = "fault")]
    pub break_gate: bool,
    /// Only this: faults of the decode server, to see that they are noticed: `landing=corrupt`.
    #[arg(long, value_name = "RULES")]
    pub fault: Option<String>,
}

/// Formats of index keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keys {
    /// As published checkpoints have them.
    Fp8,
    /// Twice the bytes.
    Bf16,
    /// One after the other.
    Both,
}

impl Keys {
    fn all(self) -> &'static [Keys] {
        match self {
            Keys::Fp8 => &[Keys::Fp8],
            Keys::Bf16 => &[Keys::Bf16],
            Keys::Both => &[Keys::Fp8, Keys::Bf16],
        }
    }
}

/// Sessions of the runs with late index keys, at most: enough to see whether the wait makes a difference.
const CONTROL_SESSIONS: u64 = 60;
/// Index keys that arrive behind everything else of their unit, long enough for a reader to be there first.
const LATE_KEYS: &str = "landing:CSA index K=delay(25)";
/// The same, and nobody waits for them.
const BROKEN_GATE: &str = "landing:CSA index K=delay(25); gate:CSA index K=skip-wait";

/// The tokens that a session was given, turn by turn; each prompt is all that was said before and something new.
fn session(connection: &mut Connection, args: &CorruptionArgs, number: u64) -> std::io::Result<Vec<u64>> {
    let mut prompt = tokens(&mut Rng::new(args.seed ^ (1 << 40) ^ (number % BEGINNINGS)), BEGINNING_TOKENS);
    let mut random = Rng::new(args.seed.wrapping_add(number << 20));
    let mut answers = Vec::new();
    for turn in 0..args.turns {
        let new = 1 + random.below(40);
        prompt.extend(tokens(&mut random, new));
        let wanted = 4 + random.below(20);
        // Half of the sessions are sampled, so that a slight error shows even where one token is by far the likeliest.
        let body = json!({
            "prompt": prompt, "max_tokens": wanted, "temperature": (number % 2) as f64, "seed": number + u64::from(turn),
            "ignore_eos": true, "return_token_ids": true, "stream": true,
        });
        let (mut answer, mut error) = (Vec::new(), None);
        connection.ask(&body, |event| {
            let ids = event["choices"][0]["token_ids"].as_array().into_iter().flatten();
            answer.extend(ids.filter_map(serde_json::Value::as_u64));
            error = event["error"]["message"].as_str().map(str::to_owned).or_else(|| error.take());
        })?;
        if let Some(error) = error {
            return Err(std::io::Error::other(error));
        }
        if answer.len() as u64 != wanted {
            return Err(std::io::Error::other(format!("expected {wanted} tokens, got {} and no reason", answer.len())));
        }
        prompt.extend(&answer);
        answers.extend(answer);
    }
    Ok(answers)
}

type Sessions = Vec<Result<Vec<u64>, String>>;

/// All sessions, so many at a time.
fn all(address: SocketAddr, args: &CorruptionArgs, concurrency: u32) -> Sessions {
    let (next, seen) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let client = || {
        let mut open = None;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= args.sessions {
                return;
            }
            let talked =
                (open.take().map_or_else(|| Connection::open(&address.to_string()), Ok)).and_then(|mut connection| {
                    let answers = session(&mut connection, args, number)?;
                    // After a failure nobody knows what is still on its way.
                    open = Some(connection);
                    Ok(answers)
                });
            seen.lock().expect("no client panics").push((number, talked.map_err(|error| error.to_string())));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..concurrency {
            scope.spawn(client);
        }
    });
    let mut seen = seen.into_inner().expect("no client panics");
    seen.sort_by_key(|(number, _)| *number);
    seen.into_iter().map(|(_, talked)| talked).collect()
}

/// How many differ, how many have no tokens, and the first that do.
fn compare(one: &Sessions, pd: &Sessions) -> (usize, usize, Vec<String>) {
    let (mut differ, mut failed, mut first) = (0, 0, Vec::new());
    for (number, pair) in one.iter().zip(pd).enumerate() {
        let why = match pair {
            (Ok(one), Ok(pd)) if one == pd => continue,
            (Ok(one), Ok(pd)) => {
                differ += 1;
                let at = one.iter().zip(pd).take_while(|(a, b)| a == b).count();
                format!("session {number}: token {at} of {}", one.len())
            }
            (Err(why), _) => {
                failed += 1;
                format!("session {number} in one process: {why}")
            }
            (_, Err(why)) => {
                failed += 1;
                format!("session {number}: {why}")
            }
        };
        if first.len() < 3 {
            first.push(why);
        }
    }
    (differ, failed, first)
}

/// What a run of two halves shows against the same sessions of one process.
struct Compared {
    sessions: u64,
    differ: usize,
    failed: usize,
    first: Vec<String>,
    turns_per_s: f64,
}

/// One format of index keys.
struct Runs<'a> {
    args: &'a CorruptionArgs,
    /// `--index-k FORMAT`
    format: Vec<String>,
    name: String,
    one: Sessions,
}

impl<'a> Runs<'a> {
    fn new(args: &'a CorruptionArgs, keys: Keys) -> Result<Self, ExperimentError> {
        let name = clap_word(keys);
        let format = vec!["--index-k".to_owned(), name.clone()];
        let own = ["--no-prefix-cache", "--port", "0"].map(str::to_owned).to_vec();
        let plain = [options(&args.deployment), format.clone(), own].concat();
        let one = all(Server::start("serve", &plain)?.address, args, args.concurrency.min(8));
        Ok(Self { args, format, name, one })
    }

    /// The first `sessions` of them, by two halves, with faults of the decode server.
    fn apart(&self, sessions: u64, faults: &str) -> Result<Compared, ExperimentError> {
        let args = CorruptionArgs { sessions: sessions.min(self.args.sessions), ..self.args.clone() };
        let decode = match faults {
            "" => Vec::new(),
            rules => vec!["--faults".to_owned(), rules.to_owned()],
        };
        let extra = Extra { both: self.format.clone(), decode, ..Extra::default() };
        let servers = Servers::start(&args.deployment, extra)?;
        let start = Instant::now();
        let pd = all(servers.router.address, &args, args.concurrency);
        let turns_per_s = (args.sessions * u64::from(args.turns)) as f64 / start.elapsed().as_secs_f64();
        let (differ, failed, first) = compare(&self.one, &pd);
        Ok(Compared { sessions: args.sessions, differ, failed, first, turns_per_s })
    }

    /// A run in which every token must be right.
    fn right(&self, what: &str, compared: &Compared, answer: &mut Answer) {
        let Compared { sessions, differ, failed, first, turns_per_s } = compared;
        let name = format!("{}, {what}", self.name);
        answer.tell(&format!("{name}: turns per second"), format!("{turns_per_s:.1}"));
        if !first.is_empty() {
            answer.tell(&format!("{name}: the first"), first.join("; "));
        }
        answer.judge(&format!("{name}: sessions whose tokens differ"), format!("{differ} of {sessions}"), *differ == 0);
        answer.judge(&format!("{name}: sessions without an answer"), failed, *failed == 0);
    }

    /// A run in which wrong tokens show that the others could have had some.
    fn wrong(&self, what: &str, compared: &Compared, answer: &mut Answer) {
        let Compared { sessions, differ, .. } = compared;
        let rate = 100.0 * *differ as f64 / *sessions as f64;
        let seen = match differ {
            0 => format!("none of {sessions}: the wait makes no difference here"),
            _ => format!("corruption found as expected: {differ} of {sessions}, {rate:.1} %"),
        };
        answer.judge(&format!("{}, {what}: sessions whose tokens differ", self.name), seen, *differ > 0);
    }
}

pub(super) fn run(args: &CorruptionArgs) -> Result<Answer, ExperimentError> {
    let (mut answer, mut figures) = (Answer::default(), Vec::new());
    for &keys in args.index_k.all() {
        let runs = Runs::new(args, keys)?;
        let figure = match &args.fault {
            Some(rules) => {
                let compared = runs.apart(args.sessions, rules)?;
                runs.right(&format!("with {rules}"), &compared, &mut answer);
                let Compared { sessions, differ, failed, .. } = compared;
                format!("with {rules}, {differ} of {sessions} sessions differ, {failed} have no answer")
            }
            None if args.break_gate => {
                let broken = runs.apart(args.sessions, BROKEN_GATE)?;
                runs.wrong("late keys not waited for", &broken, &mut answer);
                format!("without the wait for index keys, {} of {} sessions differ", broken.differ, broken.sessions)
            }
            None => {
                let clean = runs.apart(args.sessions, "")?;
                runs.right("no faults", &clean, &mut answer);
                let late = runs.apart(CONTROL_SESSIONS, LATE_KEYS)?;
                runs.right("late keys", &late, &mut answer);
                let broken = runs.apart(CONTROL_SESSIONS, BROKEN_GATE)?;
                runs.wrong("late keys not waited for", &broken, &mut answer);
                format!(
                    "{} of {} sessions differ, {} have no answer; of {} with late index keys {}, and {} without the wait",
                    clean.differ, clean.sessions, clean.failed, late.sessions, late.differ, broken.differ
                )
            }
        };
        figures.push(format!("index keys {}: {figure}", runs.name));
    }
    answer.figure = figures.join("; ");
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_token_and_a_failure_are_two_things() {
        let one = vec![Ok(vec![1, 2]), Ok(vec![3, 4]), Ok(vec![5]), Ok(vec![6])];
        let pd = vec![Ok(vec![1, 2]), Ok(vec![3, 9]), Err("PeerLost".to_owned()), Ok(vec![6])];
        let (differ, failed, first) = compare(&one, &pd);
        assert_eq!((differ, failed), (1, 1));
        assert_eq!(first, ["session 1: token 1 of 2", "session 2: PeerLost"]);
    }
}
