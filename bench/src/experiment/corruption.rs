//! Sessions of several turns, many at once, half of whose first prompt is common to a quarter of them: their tokens against those
//! of one process that computes every prompt anew.

use super::servers::{Server, Servers, options};
use super::{Answer, DeploymentArgs, ExperimentError};
use crate::e2e::http::Connection;
use clap::Args;
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
    /// Faults of the decode server, to see that they are noticed: `landing=corrupt`.
    #[arg(long, value_name = "RULES")]
    pub fault: Option<String>,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    /// Tokens that every preset has and that end no text.
    fn tokens(&mut self, count: u64) -> Vec<u64> {
        (0..count).map(|_| 3 + self.below(200)).collect()
    }
}

/// The tokens that a session was given, turn by turn; each prompt is all that was said before and something new.
fn session(connection: &mut Connection, args: &CorruptionArgs, number: u64) -> std::io::Result<Vec<u64>> {
    let mut prompt = Random(args.seed ^ (1 << 40) ^ (number % BEGINNINGS)).tokens(BEGINNING_TOKENS);
    let mut random = Random(args.seed.wrapping_add(number << 20));
    let mut answers = Vec::new();
    for turn in 0..args.turns {
        let new = 1 + random.below(40);
        prompt.extend(random.tokens(new));
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

pub(super) fn run(args: &CorruptionArgs) -> Result<Answer, ExperimentError> {
    let one = {
        let plain = [options(&args.deployment), vec!["--no-prefix-cache".to_owned()]].concat();
        all(Server::start("serve", &plain)?.address, args, args.concurrency.min(8))
    };
    let faults = args.fault.as_deref().map_or_else(Vec::new, |rules| vec!["--faults", rules]);
    let servers = Servers::start(&args.deployment, &[], &faults)?;
    let start = Instant::now();
    let pd = all(servers.router.address, args, args.concurrency);
    let seconds = start.elapsed().as_secs_f64();
    let (differ, failed, first) = compare(&one, &pd);
    let mut answer = Answer::default();
    answer.tell("turns per second", format!("{:.1}", (args.sessions * u64::from(args.turns)) as f64 / seconds));
    if let Some(rules) = &args.fault {
        answer.tell("faults of the decode server", rules);
    }
    if !first.is_empty() {
        answer.tell("the first", first.join("; "));
    }
    answer.judge("sessions whose tokens differ", differ, differ == 0);
    answer.judge("sessions without an answer", failed, failed == 0);
    answer.figure = format!("{differ} of {} sessions differ, {failed} have no answer", args.sessions);
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
