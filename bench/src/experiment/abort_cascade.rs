//! A client with many streams is killed in the middle, twice; then everything is looked at.

use super::servers::{Extra, SETTLE, Server, Servers};
use super::{Answer, DeploymentArgs, ExperimentError, list, stage};
use clap::Args;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Slowest answer about a server's life that is good.
const PROBE: Duration = Duration::from_millis(300);

/// Options of `abort-cascade`.
#[derive(Debug, Clone, Args)]
pub struct AbortCascadeArgs {
    /// Deployment.
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// Streams of the client that is killed.
    #[arg(long, default_value_t = 60, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=280))]
    pub streams: u32,
    /// Times that it is started and killed.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub cascades: u32,
    /// Milliseconds from its first connection to its death.
    #[arg(long, default_value_t = 1500, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub after_ms: u64,
    /// Requests of each run that is measured before and after.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
}

/// `sm120 e2e` against the router, as a process.
fn client(args: &AbortCascadeArgs, router: &Server, options: &[&str]) -> Result<Child, ExperimentError> {
    let program = std::env::current_exe().map_err(ExperimentError::io("this program"))?;
    let mut command = Command::new(program);
    command.args(["e2e", "--url", &format!("http://{}", router.address), "--preset", &args.deployment.preset]);
    command.args(["--ignore-eos", "--report"]).arg(args.deployment.report.join("client")).args(options);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(ExperimentError::io("a client"))
}

/// Clients at once that are measured before and after.
const CONCURRENCY: [u32; 2] = [1, 32];
/// What a deployment may lose and still be as before: two runs of a few seconds differ by a tenth on an idle machine and by
/// more on a busy one.
const NOISE: f64 = 0.5;

/// Tokens per second and checksum of runs of so many clients, all of whose requests must be answered.
fn measure(args: &AbortCascadeArgs, router: &Server, name: &str) -> Result<Vec<(f64, String)>, ExperimentError> {
    let json = args.deployment.report.join(format!("{name}.json"));
    let file = json.to_string_lossy().into_owned();
    let concurrency = CONCURRENCY.map(|clients| clients.to_string()).join(",");
    let requests = args.requests.to_string();
    let load = ["--concurrency", &concurrency, "--requests", &requests, "--new-tokens", "32", "--json", &file];
    let status = client(args, router, &load)?.wait().map_err(ExperimentError::io("a client"))?;
    let wrong = |why: String| ExperimentError::Server(format!("the run {name}: {why}"));
    if !status.success() {
        return Err(wrong(format!("{status}")));
    }
    let text = std::fs::read(&json).map_err(ExperimentError::io(&*file))?;
    let report: Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    let figures =
        |run: &Value| match (run["output_tokens_per_s"].as_f64(), run["checksum"].as_str(), run["errors"].as_u64()) {
            (Some(rate), Some(checksum), Some(0)) => Ok((rate, checksum.to_owned())),
            _ => Err(wrong(format!("expected a run without errors, got {run}"))),
        };
    let runs: Vec<_> = report["runs"].as_array().into_iter().flatten().map(figures).collect::<Result<_, _>>()?;
    match runs.len() == CONCURRENCY.len() {
        true => Ok(runs),
        false => Err(wrong(format!("expected {} runs, got {}", CONCURRENCY.len(), runs.len()))),
    }
}

/// Kills a client in the middle of its streams; how many were under way.
fn kill_client(args: &AbortCascadeArgs, servers: &Servers) -> Result<u64, ExperimentError> {
    let streams = args.streams.to_string();
    // More than it can finish before its end.
    let load = ["--concurrency", &streams, "--requests", "100000", "--prompt-tokens", "64..512", "--new-tokens", "400"];
    let mut client = client(args, &servers.router, &load)?;
    let in_flight = || -> Option<u64> {
        let (_, text, _) = servers.decode.get("/metrics").ok()?;
        text.lines().find_map(|line| line.strip_prefix("sm120_requests_in_flight ")?.parse().ok())
    };
    let start = Instant::now();
    while in_flight().is_none_or(|n| n == 0) && start.elapsed() < SETTLE {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(args.after_ms));
    let under_way = in_flight().unwrap_or(0);
    client.kill().map_err(ExperimentError::io("a client"))?;
    client.wait().map_err(ExperimentError::io("a client"))?;
    Ok(under_way)
}

pub(super) fn run(args: &AbortCascadeArgs) -> Result<Answer, ExperimentError> {
    let folder = &args.deployment.report;
    std::fs::create_dir_all(folder).map_err(ExperimentError::io(folder.display().to_string()))?;
    // Without kept beginnings every page is free when nothing runs.
    let mut servers =
        Servers::start(&args.deployment, Extra { both: vec!["--no-prefix-cache".into()], ..Extra::default() })?;
    let mut answer = Answer::default();
    stage("as it is before: clients, tokens per second");
    let before = measure(args, &servers.router, "before")?;
    let threads = |servers: &mut Servers| servers.all().map(|server| server.threads());
    let threads_before = threads(&mut servers);
    let mut slowest = Duration::ZERO;
    let mut unwell = Vec::new();
    let mut probe = |servers: &mut Servers| {
        for server in servers.all() {
            for path in ["/live", "/health"] {
                match server.get(path) {
                    Ok((200, _, took)) => slowest = slowest.max(took),
                    Ok((status, body, _)) => unwell.push(format!("{} {path} {status} {}", server.name, body.trim())),
                    Err(error) => unwell.push(format!("{} {path}: {error}", server.name)),
                }
            }
        }
    };
    for time in 1..=args.cascades {
        stage(&format!("cascade {time} of {}", args.cascades));
        let streams = kill_client(args, &servers)?;
        // At once, while everything is being taken back.
        probe(&mut servers);
        answer.judge(&format!("streams under way at death {time}"), streams, streams >= u64::from(args.streams) / 2);
    }
    let (wrong, settled) = servers.settle()?;
    answer.tell("until every page was back", format!("{} ms", settled.as_millis()));
    answer.judge("pages and rooms that did not come back", list(&wrong), wrong.is_empty());
    probe(&mut servers);
    stage("as it is afterwards");
    let after = measure(args, &servers.router, "after");
    probe(&mut servers);
    answer.judge("bad answers of /live and /health", list(&unwell), unwell.is_empty());
    answer.judge("slowest of them", format!("{} ms", slowest.as_millis()), slowest < PROBE);
    let ended: Vec<String> =
        servers.all().into_iter().filter_map(|server| (!server.lives()).then(|| server.name.to_owned())).collect();
    answer.judge("servers that ended", list(&ended), ended.is_empty());
    let threads_after = threads(&mut servers);
    let count: usize = threads_before.iter().map(Vec::len).sum();
    let seen =
        if threads_after == threads_before { format!("all {count} of them") } else { format!("{threads_after:?}") };
    answer.judge("threads of engines, ranks and transfers that go on", seen, threads_after == threads_before);
    match after {
        Ok(after) => {
            for ((clients, before), after) in CONCURRENCY.iter().zip(&before).zip(&after) {
                let seen = format!("{:.1}, {:.1}", before.0, after.0);
                answer.judge(
                    &format!("tokens per second before and after, {clients} clients"),
                    seen,
                    after.0 > NOISE * before.0,
                );
                let same = if before.1 == after.1 { "equal" } else { "differ" };
                answer.judge(&format!("tokens before and after, {clients} clients"), same, before.1 == after.1);
            }
        }
        Err(why) => answer.judge("requests afterwards", why, false),
    }
    let short = answer.findings.iter().filter(|finding| finding.good == Some(false)).count();
    answer.figure = match short {
        0 => format!("abort cascade: {} x {} streams killed, everything as before", args.cascades, args.streams),
        _ => format!("abort cascade: {short} checks FALL SHORT"),
    };
    Ok(answer)
}
