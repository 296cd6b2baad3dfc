//! A crowd: groups of users, each with habits and a time of its own, whose requests share nothing. Pure.

use std::str::FromStr;
use std::time::Duration;

use workload::schedule::{Generated, Limits, Requests};
use workload::{Arrivals, BlockId, Lengths, Planned, Prompt, Rate, Run, Schedule};

/// What the users of one tenant send: Poisson arrivals.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The tenant it belongs to. Groups of one name are one tenant.
    pub name: String,
    /// The band its requests are in: that of its key's objective.
    pub band: i32,
    pub per_second: Rate,
    pub prompt: Lengths,
    pub output: Lengths,
    /// When it sends, since the start of the load.
    pub from: Duration,
    /// Absent: until the load ends.
    pub until: Option<Duration>,
}

/// Not a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGroup {
    #[error(
        "{0:?}: write NAME rate=PER_SECOND prompt=TOKENS output=TOKENS, and band=N, from=SECONDS, until=SECONDS where they matter"
    )]
    Form(String),
    #[error("{0:?}: {1} is missing")]
    Missing(String, &'static str),
    #[error("{0:?}: {1}")]
    Value(String, String),
    #[error("{0:?}: until must be later than from")]
    Never(String),
    #[error("give 1 to {MOST_GROUPS} groups")]
    Count,
}

/// Their numbers fit into the ids of their blocks.
const MOST_GROUPS: usize = 256;
/// A day: no load is longer.
const MOST_SECONDS: f64 = 86_400.0;

impl FromStr for Group {
    type Err = BadGroup;

    /// Reads `chat rate=3.5 prompt=250..750 output=200 band=1 from=15 until=25`.
    fn from_str(text: &str) -> Result<Self, BadGroup> {
        let form = || BadGroup::Form(text.to_owned());
        let value = |why: String| BadGroup::Value(text.to_owned(), why);
        let mut words = text.split_whitespace();
        let name = words.next().filter(|name| !name.contains('='));
        let name = name.ok_or_else(form)?.to_owned();
        let (mut band, mut from, mut until) = (0, Duration::ZERO, None);
        let (mut rate, mut prompt, mut output) = (None, None, None);
        for word in words {
            let (field, given) = word.split_once('=').ok_or_else(form)?;
            let wrong = |why: &dyn std::fmt::Display| value(format!("{field}: {why}"));
            match field {
                "rate" => {
                    let number = given.parse();
                    let number =
                        number.map_err(|_| wrong(&"give a number of requests per second"))?;
                    rate = Some(Rate::new(number).map_err(|why| wrong(&why))?);
                }
                "prompt" => prompt = Some(given.parse().map_err(|why| wrong(&why))?),
                "output" => output = Some(given.parse().map_err(|why| wrong(&why))?),
                "band" => band = given.parse().map_err(|_| wrong(&"give a whole number"))?,
                "from" => from = seconds(given).map_err(|why| wrong(&why))?,
                "until" => until = Some(seconds(given).map_err(|why| wrong(&why))?),
                _ => return Err(form()),
            }
        }
        if until.is_some_and(|until| until <= from) {
            return Err(BadGroup::Never(text.to_owned()));
        }
        let missing = |field| BadGroup::Missing(text.to_owned(), field);
        Ok(Self {
            name,
            band,
            per_second: rate.ok_or_else(|| missing("rate"))?,
            prompt: prompt.ok_or_else(|| missing("prompt"))?,
            output: output.ok_or_else(|| missing("output"))?,
            from,
            until,
        })
    }
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let number = text.parse().ok();
    let number = number.filter(|number| (0.0..=MOST_SECONDS).contains(number));
    let number = number.ok_or("give seconds, at most a day of them")?;
    Ok(Duration::from_secs_f64(number))
}

/// The requests of all groups in order of time; the tenant of each is the number of its group. Equal arguments give
/// equal requests, and a group's are the same whatever others there are.
#[derive(Debug, Clone)]
pub struct Crowd {
    members: Vec<Member>,
    next: u64,
}

#[derive(Debug, Clone)]
struct Member {
    from: Duration,
    schedule: Schedule,
    ready: Option<Planned>,
}

impl Crowd {
    /// Groups without an end of their own send for `duration`.
    pub fn new(groups: &[Group], duration: Duration, seed: u64) -> Result<Self, BadGroup> {
        if groups.is_empty() || groups.len() > MOST_GROUPS {
            return Err(BadGroup::Count);
        }
        let members = groups.iter().zip(0..).map(|(group, number)| {
            let generated = Generated {
                input: group.prompt,
                output: group.output,
                shared_tokens: 0,
                groups: 1,
            };
            let until = group.until.unwrap_or(duration);
            let limits = Limits {
                requests: None,
                duration: Some(until.saturating_sub(group.from)),
            };
            let arrivals = Arrivals::Poisson(group.per_second);
            // Neighbouring seeds are as unlike as any two.
            let seed = seed.wrapping_shl(8) | number;
            let schedule = Schedule::new(arrivals, Requests::Generated(generated), limits, seed)
                .expect("its duration limits it");
            let mut member = Member {
                from: group.from,
                schedule,
                ready: None,
            };
            member.advance(number);
            member
        });
        Ok(Self {
            members: members.collect(),
            next: 0,
        })
    }
}

impl Member {
    /// Makes the next request ready: later by when the group begins, of a text that is nobody else's.
    fn advance(&mut self, number: u64) {
        /// Ids of these blocks lie above those of any trace.
        const OWN: u64 = 1 << 62;
        self.ready = self.schedule.next().map(|planned| Planned {
            at: self.from + planned.at,
            prompt: Prompt::new([Run {
                first: BlockId(OWN | number << 54 | planned.index << 16),
                tokens: planned.prompt.tokens(),
            }]),
            tenant: number as u32,
            ..planned
        });
    }
}

impl Iterator for Crowd {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        let due = |member: &Member| member.ready.as_ref().map(|planned| planned.at);
        let waiting = (0..).zip(&self.members);
        let waiting = waiting.filter_map(|(number, member)| Some((due(member)?, number)));
        let (_, number) = waiting.min()?;
        let member = &mut self.members[number as usize];
        let planned = member.ready.take()?;
        member.advance(number);
        let index = self.next;
        self.next += 1;
        Some(Planned { index, ..planned })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::{Crowd, Group};

    const TWO_MINUTES: Duration = Duration::from_mins(2);

    fn groups(texts: &[&str]) -> Vec<Group> {
        let parsed = texts.iter().map(|text| text.parse().expect("a group"));
        parsed.collect()
    }

    fn crowd(texts: &[&str], seed: u64) -> Crowd {
        Crowd::new(&groups(texts), TWO_MINUTES, seed).expect("some groups")
    }

    const CHAT: &str = "chat rate=20 prompt=250..750 output=100..300";
    const STEP: &str = "step rate=5 prompt=8000 output=lognormal:100,300,900 from=30 until=40";

    #[test]
    fn every_group_sends_what_it_says_when_it_says() {
        let all: Vec<_> = crowd(&[CHAT, STEP], 7).collect();
        assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
        assert!(all.iter().zip(0..).all(|(request, n)| request.index == n));
        let (chat, step): (Vec<_>, Vec<_>) = all.iter().partition(|request| request.tenant == 0);
        assert!((2_200..2_600).contains(&chat.len()), "{}", chat.len());
        assert!((30..75).contains(&step.len()), "{}", step.len());
        let during = |at: Duration| (30.0..40.0).contains(&at.as_secs_f64());
        assert!(
            step.iter()
                .all(|r| during(r.at) && r.prompt.tokens() == 8_000)
        );
        let is_chat = |tokens| (250..=750).contains(&tokens);
        assert!(
            chat.iter()
                .all(|r| is_chat(r.prompt.tokens()) && (100..=300).contains(&r.output_tokens))
        );
        assert!(
            chat.last()
                .is_some_and(|last| last.at > Duration::from_secs(118))
        );
    }

    #[test]
    fn no_two_prompts_have_a_block_in_common() {
        let mut blocks = BTreeSet::new();
        for request in crowd(&[CHAT, STEP, STEP], 7) {
            for (block, _) in request.prompt.blocks() {
                assert!(blocks.insert(block), "{block:?} comes twice");
            }
        }
    }

    #[test]
    fn groups_of_equal_habits_do_not_send_in_step() {
        let all: Vec<_> = crowd(&[STEP, STEP], 7).collect();
        let times = |tenant| all.iter().filter(move |r| r.tenant == tenant).map(|r| r.at);
        assert!(times(0).ne(times(1)));
    }

    #[test]
    fn a_group_is_the_same_beside_any_other_and_new_with_another_seed() {
        let own = |texts: &[&str], seed| -> Vec<_> {
            let own = crowd(texts, seed).filter(|request| request.tenant == 0);
            own.map(|r| (r.at, r.prompt, r.output_tokens)).collect()
        };
        assert_eq!(own(&[CHAT, STEP], 7), own(&[CHAT], 7));
        assert_ne!(own(&[CHAT], 7), own(&[CHAT], 8));
    }

    #[test]
    fn what_is_no_group_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "write NAME"),
            ("rate=1 prompt=1 output=1", "write NAME"),
            ("a rate=1 prompt=1 output=1 size=3", "write NAME"),
            ("a prompt=1 output=1", "rate is missing"),
            ("a rate=0 prompt=1 output=1", "rate: "),
            ("a rate=3/s prompt=1 output=1", "rate: give a number"),
            ("a rate=1 prompt=0 output=1", "prompt: "),
            ("a rate=1 prompt=1 output=1 band=x", "band: "),
            ("a rate=1 prompt=1 output=1 until=-1", "until: give seconds"),
            (
                "a rate=1 prompt=1 output=1 from=9 until=9",
                "later than from",
            ),
        ] {
            let error = text.parse::<Group>().expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(Crowd::new(&[], TWO_MINUTES, 1).is_err());
    }
}
