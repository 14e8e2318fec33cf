//! Sessions of several turns, many at once, most of whose first prompt is common to some of them: their tokens against those of one
//! process that computes every prompt anew. The pools hold what runs and little more, so that beginnings leave the device and come
//! back from the other half or out of host memory.

use super::servers::{Extra, Server, Servers, clap_word, options};
use super::{Answer, DeploymentArgs, ExperimentError, tokens};
use crate::e2e::http::Connection;
use crate::halves::TransportKind;
use crate::probe::sum;
use crate::progress::Progress;
use crate::serving::{HostBytes, parse_host_bytes};
use clap::{Args, ValueEnum};
use engine::geometry::PAGE_TOKENS;
use reference::rng::Rng;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Different beginnings: more than the pools have pages for, whatever runs.
const BEGINNINGS: u64 = 40;
/// Texts that run at once in either half, by which pools are made: of 2 pages each, if a session has 3 turns.
const RUNNING: &str = "16";
/// Tokens of a beginning: a page and more, so that later sessions can be resumed from it.
const BEGINNING_TOKENS: u64 = 260;
/// New tokens of a turn's prompt at most, and tokens of its answer.
const TURN_TOKENS: [u64; 2] = [40, 23];

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
    #[arg(long, value_enum, default_value_t = Keys::Both)]
    pub index_k: Keys,
    /// Host memory of every rank of both halves, as for `serve`.
    #[arg(long, default_value = "128MiB", value_name = "BYTES|off", value_parser = parse_host_bytes)]
    pub host_cache: HostBytes,
    /// Only this: no unit waits for its index keys, which are late. Wrong texts are then what is expected.
    #[arg(long, conflicts_with = "fault")]
    pub break_gate: bool,
    /// Only this: faults of both halves, to see that they are noticed: `landing=corrupt`.
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
/// Nobody waits for index keys.
const BROKEN_GATE: &str = "gate:CSA index K=skip-wait";

/// A way by which pages come into a cache, on which index keys can be late.
struct Way {
    name: &'static str,
    /// Index keys that arrive behind everything else of their unit, long enough for a reader to be there first.
    late: &'static str,
}

const FROM_PREFILL: Way = Way { name: "from prefill", late: "landing:CSA index K=delay(25)" };
const FROM_HOST: Way = Way { name: "out of host memory", late: "host-load:CSA index K=delay(25)" };

impl CorruptionArgs {
    /// Ways of this deployment on which keys can be made late: NIXL writes into memory without a look of ours.
    fn ways(&self) -> Result<Vec<Way>, ExperimentError> {
        let tcp = (self.deployment.transport == TransportKind::Tcp).then_some(FROM_PREFILL);
        let host = (self.host_cache != HostBytes::Off).then_some(FROM_HOST);
        let ways: Vec<Way> = tcp.into_iter().chain(host).collect();
        match ways.is_empty() {
            false => Ok(ways),
            true => Err(ExperimentError::Refused(
                "--host-cache: expected bytes with --transport nixl, got off: index keys are late on no other way there, and \
                 a run that cannot go wrong proves nothing"
                    .into(),
            )),
        }
    }

    /// Tokens of the longest session, as whole pages.
    fn context(&self) -> u32 {
        let tokens = BEGINNING_TOKENS + u64::from(self.turns) * TURN_TOKENS.iter().sum::<u64>();
        (tokens as u32).next_multiple_of(PAGE_TOKENS)
    }
}

/// The tokens that a session was given, turn by turn; each prompt is all that was said before and something new.
fn session(connection: &mut Connection, args: &CorruptionArgs, number: u64) -> std::io::Result<Vec<u64>> {
    let mut prompt = tokens(&mut Rng::new(args.seed ^ (1 << 40) ^ (number % BEGINNINGS)), BEGINNING_TOKENS);
    let mut random = Rng::new(args.seed.wrapping_add(number << 20));
    let mut answers = Vec::new();
    for turn in 0..args.turns {
        let new = 1 + random.below(TURN_TOKENS[0]);
        prompt.extend(tokens(&mut random, new));
        let wanted = 4 + random.below(TURN_TOKENS[1] - 3);
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
    let progress = Progress::new("sessions", args.sessions as usize);
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
            progress.step();
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
    /// Of the prefill server and the decode server, where they have a host cache.
    host: Option<[HostUse; 2]>,
}

/// What the host cache of a half has done.
#[derive(Debug, Clone, Copy)]
struct HostUse {
    saved: f64,
    loads: f64,
    tokens: f64,
    failed: f64,
}

impl HostUse {
    fn of(server: &Server) -> Result<Self, ExperimentError> {
        let (_, text, _) = server.get("/metrics").map_err(ExperimentError::io(server.name))?;
        let count = |what: &str| {
            sum(&text, &format!("sm120_host_cache_{what}_total ")).map_err(ExperimentError::io(server.name))
        };
        Ok(Self {
            saved: count("saved")?,
            loads: count("hits")?,
            tokens: count("hit_tokens")?,
            failed: count("loads_failed")?,
        })
    }

    fn loads(of: &[Self; 2]) -> f64 {
        of.iter().map(|half| half.loads).sum()
    }
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
        let plain = [options(&args.deployment, args.context()), format.clone(), own].concat();
        let one = all(Server::start("serve", &plain)?.address, args, args.concurrency.min(8));
        Ok(Self { args, format, name, one })
    }

    /// The first `sessions` of them, by two halves, with faults of both.
    fn apart(&self, sessions: u64, faults: &str) -> Result<Compared, ExperimentError> {
        let args = CorruptionArgs { sessions: sessions.min(self.args.sessions), ..self.args.clone() };
        let host = ["--max-running", RUNNING, "--host-cache", &args.host_cache.to_string()].map(str::to_owned);
        let mut both = [&self.format[..], &host].concat();
        if !faults.is_empty() {
            both.extend(["--faults".to_owned(), faults.to_owned()]);
        }
        let extra = Extra { both, context: Some(args.context()), ..Extra::default() };
        let servers = Servers::start(&args.deployment, extra)?;
        let start = Instant::now();
        let pd = all(servers.router.address, &args, args.concurrency);
        let turns_per_s = (args.sessions * u64::from(args.turns)) as f64 / start.elapsed().as_secs_f64();
        let (differ, failed, first) = compare(&self.one, &pd);
        let host = match args.host_cache {
            HostBytes::Off => None,
            HostBytes::Bytes(_) => Some([HostUse::of(&servers.prefill)?, HostUse::of(&servers.decode)?]),
        };
        Ok(Compared { sessions: args.sessions, differ, failed, first, turns_per_s, host })
    }

    /// A run in which every token must be right.
    fn right(&self, what: &str, compared: &Compared, answer: &mut Answer) {
        let Compared { sessions, differ, failed, first, turns_per_s, host } = compared;
        let name = format!("{}, {what}", self.name);
        answer.tell(&format!("{name}: turns per second"), format!("{turns_per_s:.1}"));
        if !first.is_empty() {
            answer.tell(&format!("{name}: the first"), first.join("; "));
        }
        answer.judge(&format!("{name}: sessions whose tokens differ"), format!("{differ} of {sessions}"), *differ == 0);
        answer.judge(&format!("{name}: sessions without an answer"), failed, *failed == 0);
        if let Some(host) = host {
            answer.tell(&format!("{name}: copies to host memory, prefill and decode"), two(host, |half| half.saved));
            let seen = format!("{} ({} tokens)", two(host, |half| half.loads), two(host, |half| half.tokens));
            answer.judge(&format!("{name}: copies back, prefill and decode"), seen, HostUse::loads(host) > 0.0);
            let failed = host.iter().all(|half| half.failed == 0.0);
            answer.judge(&format!("{name}: copies back that failed"), two(host, |half| half.failed), failed);
        }
    }

    /// The run with late keys for which nobody waits; its figure.
    fn broken(&self, way: &Way, sessions: u64, answer: &mut Answer) -> Result<String, ExperimentError> {
        let broken = self.apart(sessions, &format!("{}; {BROKEN_GATE}", way.late))?;
        self.wrong(&format!("keys late {} not waited for", way.name), &broken, answer);
        Ok(format!("{} of {}", broken.differ, broken.sessions))
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

/// A count of either half.
fn two(host: &[HostUse; 2], of: impl Fn(&HostUse) -> f64) -> String {
    host.iter().map(|half| of(half).to_string()).collect::<Vec<_>>().join(" and ")
}

pub(super) fn run(args: &CorruptionArgs) -> Result<Answer, ExperimentError> {
    let (mut answer, mut figures) = (Answer::default(), Vec::new());
    let ways = args.ways()?;
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
                let broken = ways.iter().map(|way| runs.broken(way, args.sessions, &mut answer));
                format!("without the wait for index keys {}", broken.collect::<Result<Vec<_>, _>>()?.join(", "))
            }
            None => {
                let clean = runs.apart(args.sessions, "")?;
                runs.right("no faults", &clean, &mut answer);
                let mut figure =
                    format!("{} of {} sessions differ, {} have no answer", clean.differ, clean.sessions, clean.failed);
                if let Some(host) = &clean.host {
                    figure += &format!(", {} beginnings came out of host memory", HostUse::loads(host));
                }
                for way in &ways {
                    let late = runs.apart(CONTROL_SESSIONS, way.late)?;
                    runs.right(&format!("keys late {}", way.name), &late, &mut answer);
                    let broken = runs.broken(way, CONTROL_SESSIONS, &mut answer)?;
                    figure += &format!("; with keys late {}: {}, without the wait {broken}", way.name, late.differ);
                }
                figure
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
