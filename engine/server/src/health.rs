//! Health from progress: work that waits must have moved within a limit, everywhere. Idle is healthy; a long step that gets
//! on is healthy; an open socket proves nothing.

use engine::progress::PartState;
use serde_json::{Value, json};
use std::time::Duration;

/// What `/health` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Idle, or everything that waits moves.
    Ok,
    /// These parts have work and stand still; those that only wait for them are left out.
    Stuck(Vec<String>),
    /// There will be no answers any more.
    Ended(String),
    /// The server finishes what it has and takes nothing new.
    Draining,
    /// What others compute for this server nobody computes now.
    Unavailable(String),
}

impl Health {
    /// Judges by the age of the last progress.
    pub fn of(parts: &[PartState], ended: Option<String>, draining: bool, limit: Duration) -> Self {
        if let Some(why) = ended {
            return Health::Ended(why);
        }
        let still = |part: &PartState| part.waiting > 0 && part.still > limit;
        let behind = |part: &PartState| {
            parts.iter().any(|other| part.behind.contains(&other.name) && still(other) && other.name != part.name)
        };
        let stuck: Vec<String> = parts
            .iter()
            .filter(|part| still(part) && !behind(part))
            .map(|part| {
                format!("{}: {} waiting, no progress for {:.1} s", part.name, part.waiting, part.still.as_secs_f64())
            })
            .collect();
        match stuck.is_empty() {
            false => Health::Stuck(stuck),
            true if draining => Health::Draining,
            true => Health::Ok,
        }
    }

    /// The same, unless somebody else is missing; that matters only where all is well otherwise.
    pub fn unless(self, unavailable: Option<String>) -> Self {
        match (self, unavailable) {
            (Health::Ok, Some(why)) => Health::Unavailable(why),
            (health, _) => health,
        }
    }

    /// Whether requests should come here.
    pub fn is_ok(&self) -> bool {
        *self == Health::Ok
    }

    /// Body of the answer.
    pub fn body(&self, parts: &[PartState]) -> Value {
        let (status, reason) = match self {
            Health::Ok => ("ok", None),
            Health::Stuck(parts) => ("stuck", Some(parts.join("; "))),
            Health::Ended(why) => ("ended", Some(why.clone())),
            Health::Unavailable(why) => ("unavailable", Some(why.clone())),
            Health::Draining => ("draining", Some("the server is shutting down".to_owned())),
        };
        let part = |part: &PartState| {
            json!({
                "name": part.name,
                "waiting": part.waiting,
                "done": part.done,
                "still_ms": part.still.as_millis() as u64,
            })
        };
        json!({ "status": status, "reason": reason, "parts": parts.iter().map(part).collect::<Vec<_>>() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    fn part(name: &str, waiting: u64, still_ms: u64, behind: &[&str]) -> PartState {
        let behind = behind.iter().map(|&name| name.to_owned()).collect();
        PartState { name: name.into(), waiting, done: 7, still: Duration::from_millis(still_ms), behind }
    }

    #[test]
    fn what_stands_still_with_work_is_named() {
        let of = |parts: &[PartState]| Health::of(parts, None, false, LIMIT);
        assert_eq!(of(&[]), Health::Ok);
        assert_eq!(of(&[part("rank 0", 0, 9_000, &[]), part("engine", 3, 1_999, &["rank 0"])]), Health::Ok);
        let parts = [
            part("rank 0", 1, 2_500, &[]),
            part("rank 1", 1, 40, &[]),
            part("engine", 3, 2_600, &["rank 0", "rank 1"]),
            part("other", 2, 3_000, &["rank 1"]),
        ];
        let stuck = of(&parts);
        let named = vec![
            "rank 0: 1 waiting, no progress for 2.5 s".to_owned(),
            "other: 2 waiting, no progress for 3.0 s".to_owned(),
        ];
        assert_eq!(stuck, Health::Stuck(named), "the engine only waits for a rank");
        assert_eq!(stuck.body(&parts)["parts"][0]["still_ms"], 2_500);
    }

    #[test]
    fn an_end_is_worse_than_a_standstill_and_that_than_draining() {
        let stuck = [part("engine", 1, 5_000, &[])];
        assert_eq!(Health::of(&stuck, Some("gone".into()), true, LIMIT), Health::Ended("gone".into()));
        assert!(matches!(Health::of(&stuck, None, true, LIMIT), Health::Stuck(_)));
        assert_eq!(Health::of(&[], None, true, LIMIT), Health::Draining);
    }

    #[test]
    fn who_is_missing_matters_where_all_is_well() {
        let missing = || Some("no prefill server".to_owned());
        assert_eq!(Health::Ok.unless(None), Health::Ok);
        let alone = Health::Ok.unless(missing());
        assert!(!alone.is_ok());
        let body = alone.body(&[]);
        assert_eq!((&body["status"], &body["reason"]), (&json!("unavailable"), &json!("no prefill server")));
        assert_eq!(Health::Draining.unless(missing()), Health::Draining);
        assert_eq!(Health::Ended("gone".into()).unless(missing()), Health::Ended("gone".into()));
    }
}
