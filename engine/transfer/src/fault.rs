//! Faults on purpose: which, where, how often, by seed.
//!
//! A text says what goes wrong, e.g.
//! `seed=7; frame-received:ABORT=drop@0.01; page-copy:CSA index K=delay(5); quarantine=release-early`: rules
//! `point[:name]=fault[(number)][@probability | #occurrence]`, separated by `;`. A rule without `:name` applies to every
//! name; without probability and occurrence it applies always. Each rule decides for its nth occurrence from seed and n
//! alone, so a run repeats as far as its own order repeats.
//!
//! Off, a point costs one branch.

mod points;

pub use points::{Fault, Point};

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use thiserror::Error;

/// Why a text is no list of faults.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FaultError {
    /// A rule without `=`.
    #[error("fault rule `{0}`: expected point[:name]=fault[(number)][@probability or #occurrence], or seed=number")]
    Shape(String),
    /// No such point.
    #[error("fault rule `{rule}`: no point `{got}`; there are {}", words(Point::ALL.iter().map(|point| point.word())))]
    Point {
        /// Rule.
        rule: String,
        /// Word found.
        got: String,
    },
    /// Not a fault of that point.
    #[error("fault rule `{rule}`: {} takes {}, got `{got}`", point.word(), words(point.faults().iter().map(|f| f.word())))]
    Fault {
        /// Rule.
        rule: String,
        /// Its point.
        point: Point,
        /// Word found.
        got: String,
    },
    /// A number that is none, or out of range.
    #[error("fault rule `{rule}`: expected {expected}, got `{got}`")]
    Number {
        /// Rule.
        rule: String,
        /// What stands there.
        expected: &'static str,
        /// Text found.
        got: String,
    },
}

fn words<'a>(all: impl Iterator<Item = &'a str>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

/// When a rule applies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum When {
    Always,
    /// Probability, 0 to 1.
    Chance(f64),
    /// The nth occurrence, from 1.
    Nth(u64),
}

#[derive(Debug)]
struct Rule {
    point: Point,
    name: Option<String>,
    fault: Fault,
    number: u64,
    when: When,
    seen: AtomicU64,
}

/// A fault that happens now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injected {
    /// What.
    pub fault: Fault,
    /// The rule's number, 0 where none was given.
    pub number: u64,
    /// Bits for whatever the place has to choose (a byte, a page), by seed and occurrence.
    pub random: u64,
}

/// The faults of a process or a test.
#[derive(Debug, Default)]
pub struct Faults(Option<Box<(u64, Vec<Rule>)>>);

impl Faults {
    /// None.
    pub const fn none() -> Self {
        Self(None)
    }

    /// From a text; an empty one means none.
    ///
    /// # Errors
    /// A rule that is none, named.
    pub fn parse(text: &str) -> Result<Self, FaultError> {
        let (mut seed, mut rules) = (0, Vec::new());
        for rule in text.split(';').map(str::trim).filter(|rule| !rule.is_empty()) {
            let (left, right) = rule.split_once('=').ok_or_else(|| FaultError::Shape(rule.into()))?;
            if left.trim() == "seed" {
                seed = number(rule, "a seed from 0 to 2^64 - 1", right)?;
            } else {
                rules.push(Rule::parse(rule, left, right)?);
            }
        }
        Ok(Self((!rules.is_empty()).then(|| Box::new((seed, rules)))))
    }

    /// What happens at a point to a name (a frame kind, an item; empty where the point has none): the first rule that says so.
    pub fn at(&self, point: Point, name: &str) -> Option<Injected> {
        let (seed, rules) = self.0.as_deref()?;
        let mut first = None;
        for (i, rule) in rules.iter().enumerate() {
            if rule.point != point || rule.name.as_deref().is_some_and(|only| only != name) {
                continue;
            }
            // Counted whether or not an earlier rule hit: the nth occurrence is the nth, whatever the other rules are.
            let nth = rule.seen.fetch_add(1, Relaxed) + 1;
            let random = mix(mix(*seed ^ ((i as u64) << 48)) ^ nth);
            let happens = match rule.when {
                When::Always => true,
                When::Chance(chance) => ((random >> 11) as f64) < chance * (1u64 << 53) as f64,
                When::Nth(only) => nth == only,
            };
            if happens && first.is_none() {
                first = Some(Injected { fault: rule.fault, number: rule.number, random: mix(random) });
            }
        }
        first
    }

    /// Whether some rule is for this point, whatever its name.
    pub fn any(&self, point: Point) -> bool {
        self.0.as_deref().is_some_and(|(_, rules)| rules.iter().any(|rule| rule.point == point))
    }

    /// Whether some rule has this fault at this point.
    pub fn wants(&self, point: Point, fault: Fault) -> bool {
        self.0.as_deref().is_some_and(|(_, rules)| rules.iter().any(|rule| (rule.point, rule.fault) == (point, fault)))
    }

    /// Whether some rule is for this point and name: asked once where a check per occurrence would cost too much.
    pub fn has(&self, point: Point, name: &str) -> bool {
        self.0.as_deref().is_some_and(|(_, rules)| {
            rules.iter().any(|rule| rule.point == point && rule.name.as_deref().is_none_or(|only| only == name))
        })
    }
}

/// The text again.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((seed, rules)) = self.0.as_deref() else { return Ok(()) };
        write!(f, "seed={seed}")?;
        for rule in rules {
            write!(f, "; {}", rule.point.word())?;
            if let Some(name) = &rule.name {
                write!(f, ":{name}")?;
            }
            write!(f, "={}({})", rule.fault.word(), rule.number)?;
            match rule.when {
                When::Always => {}
                When::Chance(chance) => write!(f, "@{chance}")?,
                When::Nth(nth) => write!(f, "#{nth}")?,
            }
        }
        Ok(())
    }
}

impl Rule {
    fn parse(rule: &str, left: &str, right: &str) -> Result<Self, FaultError> {
        let (point, name) = match left.split_once(':') {
            Some((point, name)) => (point.trim(), Some(name.trim().to_owned())),
            None => (left.trim(), None),
        };
        let point = Point::parse(point).ok_or_else(|| FaultError::Point { rule: rule.into(), got: point.into() })?;
        let (right, when) = if let Some((right, chance)) = right.split_once('@') {
            let expected = "a probability from 0 to 1";
            let wrong = || FaultError::Number { rule: rule.into(), expected, got: chance.trim().into() };
            let chance = chance.trim().parse().ok().filter(|chance| (0.0..=1.0).contains(chance)).ok_or_else(wrong)?;
            (right, When::Chance(chance))
        } else if let Some((right, nth)) = right.split_once('#') {
            (right, When::Nth(number(rule, "an occurrence from 1", nth).and_then(|nth| positive(rule, nth))?))
        } else {
            (right, When::Always)
        };
        let (word, number) = match right.trim().strip_suffix(')').and_then(|right| right.split_once('(')) {
            Some((word, inside)) => (word.trim(), number(rule, "a number in brackets", inside)?),
            None => (right.trim(), 0),
        };
        let fault = Fault::parse(word).filter(|fault| point.faults().contains(fault));
        let fault = fault.ok_or_else(|| FaultError::Fault { rule: rule.into(), point, got: word.into() })?;
        Ok(Self { point, name, fault, number, when, seen: AtomicU64::new(0) })
    }
}

fn number(rule: &str, expected: &'static str, text: &str) -> Result<u64, FaultError> {
    let text = text.trim();
    text.parse().map_err(|_| FaultError::Number { rule: rule.into(), expected, got: text.into() })
}

fn positive(rule: &str, number: u64) -> Result<u64, FaultError> {
    let zero = || FaultError::Number { rule: rule.into(), expected: "an occurrence from 1", got: "0".into() };
    (number > 0).then_some(number).ok_or_else(zero)
}

/// The finaliser of SplitMix64: every bit of the input reaches every bit of the output.
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule() -> impl Strategy<Value = String> {
        let point = prop::sample::select(Point::ALL);
        let when = prop_oneof![
            Just(String::new()),
            (0u32..=1000).prop_map(|chance| format!("@{}", f64::from(chance) / 1000.0)),
            (1u64..9).prop_map(|nth| format!("#{nth}")),
        ];
        (point, any::<prop::sample::Index>(), prop::option::of("[A-Za-z][A-Za-z -]{0,9}[a-z]"), any::<u64>(), when)
            .prop_map(|(point, fault, name, number, when)| {
                let name = name.map(|name| format!(":{name}")).unwrap_or_default();
                format!("{}{name}={}({number}){when}", point.word(), fault.get(point.faults()).word())
            })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seed: u64, rules in prop::collection::vec(rule(), 1..5)) {
            let text = format!("seed={seed}; {}", rules.join("; "));
            prop_assert_eq!(Faults::parse(&text).unwrap().to_string(), text);
        }

        #[test]
        fn any_text_is_rules_or_an_error(text in "[a-z0-9=:;@#(). -]{0,60}|\\PC{0,40}") {
            if let Ok(faults) = Faults::parse(&text) {
                prop_assert_eq!(Faults::parse(&faults.to_string()).unwrap().to_string(), faults.to_string());
            }
        }
    }

    #[test]
    fn errors_name_the_rule_and_what_may_stand_there() {
        let error = |text: &str| Faults::parse(text).unwrap_err().to_string();
        assert_eq!(error("gate=drop"), "fault rule `gate=drop`: gate takes skip-wait, got `drop`");
        assert!(error("doom=drop").starts_with("fault rule `doom=drop`: no point `doom`; there are frame-sent, "));
        assert_eq!(
            error("seed=1; post=fail@1.5"),
            "fault rule `post=fail@1.5`: expected a probability from 0 to 1, got `1.5`"
        );
        assert_eq!(error("post=fail#0"), "fault rule `post=fail#0`: expected an occurrence from 1, got `0`");
        assert_eq!(error("poll=delay(x)"), "fault rule `poll=delay(x)`: expected a number in brackets, got `x`");
        assert!(error("post").contains("expected point[:name]=fault"));
        assert_eq!(Faults::parse(" ; ").unwrap().to_string(), "");
    }

    #[test]
    fn rules_hit_by_name_occurrence_and_chance() {
        let faults = Faults::parse("seed=3; frame-received:ABORT=drop#2; frame-received=delay(40)@0.25").unwrap();
        let kinds = |name: &str| faults.at(Point::FrameReceived, name).map(|hit| (hit.fault, hit.number));
        let aborts: Vec<_> = (0..3).map(|_| kinds("ABORT") == Some((Fault::Drop, 0))).collect();
        assert_eq!(aborts, [false, true, false]);
        let hits = (0..4000).filter(|_| kinds("OPEN") == Some((Fault::Delay, 40))).count();
        assert!((900..1100).contains(&hits), "{hits} of 4000 at one quarter");
        assert_eq!(faults.at(Point::Gate, "CSA index K"), None);
        assert!(faults.has(Point::FrameReceived, "BYE") && !faults.has(Point::Post, ""));
        assert!(faults.any(Point::FrameReceived) && !faults.any(Point::FrameSent));
    }

    #[test]
    fn the_seed_repeats_and_another_differs() {
        let run = |seed| {
            let faults = Faults::parse(&format!("seed={seed}; post=fail@0.5")).unwrap();
            (0..64).map(|_| faults.at(Point::Post, "").is_some()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
