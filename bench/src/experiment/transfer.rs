//! Long prompts through a deployment, round by round: bytes that move, how fast they move while they do, and what that is beside
//! a plain socket of the same machine at the same time.

use super::servers::{Extra, Server, Servers};
use super::{Answer, DeploymentArgs, ExperimentError, stage};
use crate::e2e::http::Connection;
use crate::moved::Moved;
use ::transfer::rates::{median, plain_socket};
use clap::Args;
use serde_json::json;
use std::net::SocketAddr;

/// Bytes of a round of the plain socket.
const SOCKET_BYTES: usize = 64 << 20;

/// Options of `transfer`.
#[derive(Debug, Clone, Args)]
pub struct TransferArgs {
    /// Deployment.
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// Rounds.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Requests of a round, all at once.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub requests: u32,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 900, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub prompt_tokens: u64,
}

/// Prompts of so many tokens, all at once; each is another text in every round.
fn ask(router: SocketAddr, args: &TransferArgs, round: u64, tokens: u64) -> Result<(), ExperimentError> {
    let one = |request: u64| -> std::io::Result<()> {
        let prompt: Vec<u64> = (0..tokens).map(|i| 3 + (i * (7 + request) + 31 * round + request) % 200).collect();
        let body = json!({ "prompt": prompt, "max_tokens": 1, "temperature": 0.0, "ignore_eos": true, "stream": true });
        let mut failure = None;
        Connection::open(&router.to_string())?.ask(&body, |event| {
            failure = event["error"]["message"].as_str().map(str::to_owned).or_else(|| failure.take());
        })?;
        failure.map_or(Ok(()), |why| Err(std::io::Error::other(why)))
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..u64::from(args.requests)).map(|request| scope.spawn(move || one(request))).collect();
        let ended = asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| Err(std::io::Error::other("panic"))));
        ended.collect::<Result<(), _>>().map_err(ExperimentError::io("a request"))
    })
}

fn moved(prefill: &Server) -> Result<Moved, ExperimentError> {
    Moved::by(&[prefill.address]).map_err(ExperimentError::io("metrics of the prefill server"))
}

pub(super) fn run(args: &TransferArgs) -> Result<Answer, ExperimentError> {
    // Every prompt is computed anew and moves whole.
    let servers =
        Servers::start(&args.deployment, Extra { both: vec!["--no-prefix-cache".into()], ..Extra::default() })?;
    let router = servers.router.address;
    let mut answer = Answer::default();
    let before = moved(&servers.prefill)?;
    ask(router, args, 0, 1)?;
    let short = moved(&servers.prefill)?.since(before).bytes / u64::from(args.requests);
    let (mut rates, mut sockets, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=u64::from(args.rounds) {
        stage(&format!("round {round} of {}", args.rounds));
        sockets.extend(plain_socket(SOCKET_BYTES, 1).map_err(ExperimentError::io("a plain socket"))?);
        let before = moved(&servers.prefill)?;
        ask(router, args, round, args.prompt_tokens)?;
        let now = moved(&servers.prefill)?.since(before);
        rates.push(now.gb_per_second());
        bytes.push(now.bytes);
    }
    let (rate, socket) = (median(rates.iter().copied()), median(sockets.iter().copied()));
    let per_request = bytes[0] / u64::from(args.requests);
    answer.tell("requests of a round, tokens of a prompt", format!("{}, {}", args.requests, args.prompt_tokens));
    answer.tell("bytes of a request", per_request);
    answer.tell("of a prompt of one token: window, states", short);
    answer.judge("bytes of every round", format!("{bytes:?}"), bytes.iter().all(|all| *all == bytes[0]) && short > 0);
    answer.tell("GB/s while pages move, by round", list(&rates));
    answer.tell("GB/s of a plain socket, by round", list(&sockets));
    answer.figure = format!(
        "transfer: {rate:.3} GB/s while pages move (median of {} rounds), {:.0} % of a plain socket's {socket:.3} GB/s",
        args.rounds,
        100.0 * rate / socket
    );
    Ok(answer)
}

fn list(rates: &[f64]) -> String {
    rates.iter().map(|rate| format!("{rate:.3}")).collect::<Vec<_>>().join(", ")
}
