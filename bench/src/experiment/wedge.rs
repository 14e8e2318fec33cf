//! One part after another is stuck or dead while clients ask: who notices, what the clients are told, whether it all recovers.

mod cases;
mod clients;

use super::servers::{SETTLE, Servers};
use super::{Answer, DeploymentArgs, ExperimentError, list};
use crate::halves::TransportKind;
use cases::{Act, CASES, Case, Names, Who};
use clap::Args;
use clients::{Clients, Told};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long something stays stuck that is let go again.
const HOLD: Duration = Duration::from_secs(4);
/// For a fault to strike, for what is stuck to be seen, for a process to end.
const WATCH: Duration = Duration::from_secs(30);
/// For a server to say how it is.
const PROBE: Duration = Duration::from_millis(500);

/// Between two looks of a router at its servers: it sees a standstill that much later.
const LOOKS: Duration = Duration::from_millis(500);

/// Options of `wedge`.
#[derive(Debug, Clone, Args)]
pub struct WedgeArgs {
    /// Deployment.
    #[command(flatten)]
    pub deployment: DeploymentArgs,
    /// Clients that ask without pause.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=280))]
    pub clients: u64,
    /// Only these cases.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = CASES.iter().map(|case| case.name).collect::<Vec<_>>())]
    pub cases: Vec<String>,
    /// Milliseconds from a standstill to a bad `/health`: 2 s of it, and what a probe takes.
    #[arg(long, default_value_t = 2500, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub bound_ms: u64,
}

/// A bad `/health`.
struct Seen {
    /// Age of the standstill.
    after: Duration,
    reason: String,
}

pub(super) fn run(args: &WedgeArgs) -> Result<Answer, ExperimentError> {
    let mut answer = Answer::default();
    let wanted = |case: &&Case| args.cases.is_empty() || args.cases.iter().any(|name| name == case.name);
    let here = |case: &&Case| args.deployment.transport == TransportKind::Tcp || !case.is_of_tcp();
    let (cases, left_out): (Vec<&Case>, Vec<&Case>) = CASES.iter().filter(wanted).partition(here);
    if let Some(case) = left_out.first() {
        let why = format!("{}: expected --transport tcp, whose faults it uses", case.name);
        match args.cases.is_empty() {
            false => return Err(ExperimentError::Refused(why)),
            true => answer.tell("not run", list(&left_out.iter().map(|case| case.name.to_owned()).collect::<Vec<_>>())),
        }
    }
    for case in &cases {
        one(args, case, &mut answer)?;
    }
    let short = answer.findings.iter().filter(|finding| finding.good == Some(false)).count();
    answer.figure = match short {
        0 => format!("wedge: {} cases, everybody was told and everything recovered", cases.len()),
        _ => format!("wedge: {short} checks of {} cases FALL SHORT", cases.len()),
    };
    Ok(answer)
}

fn one(args: &WedgeArgs, case: &Case, answer: &mut Answer) -> Result<(), ExperimentError> {
    let mut servers = Servers::start(&args.deployment, case.extra())?;
    let clients = Clients::start(servers.router.address, args.clients);
    let start = Instant::now();
    if case.act.is_at_once() {
        await_answers(&clients, start, 2 * args.clients as usize)?;
    }
    let act = Instant::now();
    case.act.begin(&mut servers)?;
    let seen = case.seen.and_then(|(who, names)| watch(&mut servers, who, names, act));
    let back = resume(case, &mut servers, act)?;
    let well = servers.await_answers().and_then(|well| {
        await_answers(&clients, back, args.clients as usize)?;
        Ok(well)
    });
    let name = case.name;
    answer.tell(&format!("{name}: what was done"), case.words());
    let again = format!("{name}: well again after (at most {} s)", SETTLE.as_secs());
    match well {
        Ok(well) => answer.judge(&again, format!("{:.2} s", well.as_secs_f64()), true),
        Err(why) => {
            answer.judge(&again, why, false);
            // Clients may wait for it for ever.
            drop(servers);
            clients.stop();
            return Ok(());
        }
    }
    let told = clients.stop();
    let (wrong, _) = servers.settle()?;
    if let Some((who, names)) = case.seen {
        let text = names.text(&servers);
        let looks = if who == Who::Router { LOOKS } else { Duration::ZERO };
        let bound = Duration::from_millis(args.bound_ms) + looks;
        let good = seen.as_ref().is_some_and(|seen| seen.after <= bound && seen.reason.contains(&text));
        let seen =
            seen.map_or("nothing".to_owned(), |seen| format!("{:.2} s: {}", seen.after.as_secs_f64(), seen.reason));
        answer.judge(&format!("{name}: {who:?} /health is 503 after"), seen, good);
        let (status, ..) = who.of(&mut servers).get("/health").map_err(ExperimentError::io("/health"))?;
        answer.judge(&format!("{name}: {who:?} /health in the end"), status.to_string(), status == 200);
    }
    judge_told(case, &told, act, answer);
    answer.judge(&format!("{name}: pages and rooms that did not come back"), list(&wrong), wrong.is_empty());
    Ok(())
}

fn await_answers(clients: &Clients, since: Instant, count: usize) -> Result<(), ExperimentError> {
    let start = Instant::now();
    while clients.answered_since(since) < count {
        if start.elapsed() > SETTLE {
            return Err(ExperimentError::Server(format!("{count} clients are not answered within {SETTLE:?}")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The first bad answer of a server, or none at all: who is named, and for how long it has stood still.
fn watch(servers: &mut Servers, who: Who, names: Names, since: Instant) -> Option<Seen> {
    while since.elapsed() < WATCH {
        if let Ok((503, text, _)) = who.of(servers).get_within("/health", PROBE) {
            let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str::<Value>(body).ok());
            let body = body.unwrap_or_default();
            let part = |part: &&Value| matches!(names, Names::Words(name) if part["name"] == name);
            let age =
                body["parts"].as_array().into_iter().flatten().find(part).and_then(|part| part["still_ms"].as_u64());
            let after = age.map_or_else(|| since.elapsed(), Duration::from_millis);
            return Some(Seen { after, reason: body["reason"].as_str().unwrap_or_default().to_owned() });
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Lets go what is stuck; the moment from which everything should be well again.
fn resume(case: &Case, servers: &mut Servers, act: Instant) -> Result<Instant, ExperimentError> {
    match case.act {
        Act::Stop(who) => {
            std::thread::sleep(HOLD.saturating_sub(act.elapsed()));
            who.of(servers).signal(Signal::CONT)?;
        }
        Act::Kill(who) => {
            std::thread::sleep(HOLD.saturating_sub(act.elapsed()));
            who.of(servers).restart()?;
        }
        Act::Rule(..) => std::thread::sleep(HOLD),
        Act::End(who, _) => {
            let start = Instant::now();
            while who.of(servers).lives() {
                if start.elapsed() > WATCH {
                    return Err(ExperimentError::Server(format!("{}: the process does not end", case.name)));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let server = who.of(servers);
            server.without_faults();
            server.restart()?;
        }
    }
    Ok(Instant::now())
}

/// Whether everybody who failed was told why, soon enough.
fn judge_told(case: &Case, told: &[Told], act: Instant, answer: &mut Answer) {
    let name = case.name;
    let failed: Vec<(&Told, &String)> =
        told.iter().filter_map(|told| Some((told, told.outcome.as_ref().err()?))).collect();
    let strange: BTreeMap<&String, usize> = (failed.iter())
        .filter(|(_, why)| !case.reasons.iter().any(|reason| why.contains(reason)))
        .fold(BTreeMap::new(), |mut count, (_, why)| {
            *count.entry(*why).or_default() += 1;
            count
        });
    let strange: Vec<String> = strange.iter().map(|(why, count)| format!("{count} x {why}")).collect();
    let answered = told.len() - failed.len();
    answer.tell(&format!("{name}: requests answered, failed with a reason"), format!("{answered}, {}", failed.len()));
    answer.judge(&format!("{name}: reasons that were not expected"), list(&strange), strange.is_empty());
    let mut reasons: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    for (told, why) in &failed {
        let known = case.reasons.iter().find(|reason| why.contains(**reason)).copied().unwrap_or("other");
        let entry = reasons.entry(known).or_default();
        // From when it is stuck, where that is known, else from the request.
        let from = if case.act.is_at_once() { told.asked.max(act) } else { told.asked };
        *entry = (entry.0 + 1, entry.1.max(told.ended.saturating_duration_since(from)));
    }
    let each = |(reason, (count, last)): (&&str, &(usize, Duration))| {
        format!("{count} x {reason}, the last after {:.2} s", last.as_secs_f64())
    };
    let seen = list(&reasons.iter().map(each).collect::<Vec<_>>());
    let good = reasons.values().all(|(_, last)| *last <= case.within);
    answer.judge(&format!("{name}: clients were told (at most {} s)", case.within.as_secs()), seen, good);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(asked: Instant, after_ms: u64, outcome: Result<(), &str>) -> Told {
        Told { asked, ended: asked + Duration::from_millis(after_ms), outcome: outcome.map_err(str::to_owned) }
    }

    fn verdicts(told: &[Told], act: Instant) -> Vec<bool> {
        let mut answer = Answer::default();
        let case = CASES.iter().find(|case| case.name == "prefill-killed").expect("a case");
        judge_told(case, told, act, &mut answer);
        answer.findings.iter().filter_map(|finding| finding.good).collect()
    }

    /// Expected reasons, and in time.
    #[test]
    fn strange_reasons_and_late_ones_fall_short() {
        let start = Instant::now();
        let act = start + Duration::from_secs(10);
        let lost = |asked, after_ms| told(asked, after_ms, Err("PeerLost: nothing heard for 2s"));
        assert_eq!(verdicts(&[told(start, 9, Ok(())), lost(act, 3_000)], act), [true, true]);
        // Asked long before, told soon after it died.
        assert_eq!(verdicts(&[lost(start, 11_000)], act), [true, true]);
        assert_eq!(verdicts(&[lost(act, 4_001)], act), [true, false]);
        assert_eq!(verdicts(&[told(act, 5, Err("expected 24 tokens, got 3 and no reason"))], act), [false, true]);
    }

    #[test]
    fn every_fault_of_a_case_parses() {
        for case in CASES {
            if let Act::Rule(_, rules) | Act::End(_, rules) = case.act {
                transfer::fault::Faults::parse(rules).expect(case.name);
            }
        }
    }
}
