//! What a ticket must say so that a tunnel may be opened with it, and that it is good once.
//!
//! A ticket is a signed token; whoever calls this has checked the signature and read the claims. It judges
//! audience, node and time, and remembers the ids of tickets until they have expired by themselves.
//!
//! 1. A ticket is good from its issue on, or from a later date that it names, for at most `MAX_TICKET_LIFE`, and names one node.
//! 2. An id is taken at most once while it could be shown again.
//! 3. Where no more ids can be remembered no ticket is taken: it fails closed. So it does where ids may have been forgotten:
//!    a ticket that was issued before the memory began is not taken, since another process may have (by 1 it took none that
//!    was issued later).
//! 4. No sentence repeats what stands in a ticket.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::close::TunnelCode;
use crate::time::UnixMillis;

/// Longest time between a ticket's issue and its expiry.
pub const MAX_TICKET_LIFE: Duration = Duration::from_secs(60);
/// How far an issuer's clock may be ahead of the gateway's.
pub const TICKET_LEEWAY: Duration = Duration::from_secs(5);
/// Longest ticket, and longest id and subject in one.
pub const MAX_TICKET_BYTES: usize = 8 << 10;
pub const MAX_TICKET_ID_BYTES: usize = 128;
pub const MAX_SUBJECT_BYTES: usize = 256;

/// Why a ticket opens nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TicketFault {
    /// No signed token of a kind that is taken, or without what it must say.
    Malformed,
    /// No key of the issuer has that name.
    UnknownKey,
    Signature,
    Audience,
    OtherNode,
    Expired,
    /// Valid for longer than tickets may be, or from a later time on.
    TooLong,
    /// Issued before it was remembered what is used.
    BeforeStart,
    Used,
    /// As many tickets are remembered as may be.
    Full,
    /// The issuer's keys could not be fetched.
    KeysAway,
}

impl TicketFault {
    pub const fn code(self) -> TunnelCode {
        match self {
            Self::Malformed => TunnelCode::InvalidArgument,
            Self::UnknownKey
            | Self::Signature
            | Self::Expired
            | Self::TooLong
            | Self::BeforeStart
            | Self::Used => TunnelCode::Unauthenticated,
            Self::Audience | Self::OtherNode => TunnelCode::PermissionDenied,
            Self::Full => TunnelCode::ResourceExhausted,
            Self::KeysAway => TunnelCode::Unavailable,
        }
    }
}

impl fmt::Display for TicketFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => {
                "the ticket is no signed token (ES256 or EdDSA, with a kid) that says aud, sub, node, iat, exp and jti"
            }
            Self::UnknownKey => "the ticket is signed with a key that its issuer does not publish",
            Self::Signature => "the ticket's signature is wrong",
            Self::Audience => "the ticket is for another audience (tunnels.audience)",
            Self::OtherNode => "the ticket is for another node",
            Self::Expired => "the ticket has expired; get a new one",
            Self::TooLong => "the ticket is valid for longer than 60 s, or not yet",
            Self::BeforeStart => {
                "the ticket is older than this gateway's process, which can't know whether it was used; get a new one"
            }
            Self::Used => "the ticket was used before; get a new one",
            Self::Full => "the gateway remembers as many used tickets as it may (tunnels.used_tickets); retry later",
            Self::KeysAway => "the keys that tickets are signed with can't be fetched; retry later",
        })
    }
}

/// What a ticket says, after its signature was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketClaims {
    pub audiences: Vec<String>,
    pub subject: String,
    pub node: String,
    pub issued_at: UnixMillis,
    /// The `nbf`, where it is there.
    pub not_before: Option<UnixMillis>,
    pub expires_at: UnixMillis,
    /// The `jti`.
    pub id: String,
}

impl TicketClaims {
    /// For how long its judgement is to wait until it is good: the clock of its issuer may be ahead, by at most
    /// `TICKET_LEEWAY`.
    pub fn early_by(&self, now: UnixMillis) -> Duration {
        let early = self.good_from().since(now);
        if early > TICKET_LEEWAY { Duration::ZERO } else { early }
    }

    fn good_from(&self) -> UnixMillis {
        self.not_before.map_or(self.issued_at, |date| date.max(self.issued_at))
    }
}

/// Whom a ticket lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TicketGrant {
    pub subject: String,
    pub ticket_id: String,
    pub issued_at: UnixMillis,
    pub expires_at: UnixMillis,
}

/// Judges a ticket that is shown for a tunnel to `node`.
pub fn judge(
    claims: TicketClaims,
    audience: &str,
    node: &str,
    now: UnixMillis,
) -> Result<TicketGrant, TicketFault> {
    let good_from = claims.good_from();
    let TicketClaims { audiences, subject, node: of_ticket, issued_at, expires_at, id, .. } = claims;
    let fits =
        |text: &str, most| !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control);
    if !fits(&id, MAX_TICKET_ID_BYTES) || !fits(&subject, MAX_SUBJECT_BYTES) {
        return Err(TicketFault::Malformed);
    }
    if !audiences.iter().any(|named| named == audience) {
        return Err(TicketFault::Audience);
    }
    if of_ticket != node {
        return Err(TicketFault::OtherNode);
    }
    if expires_at <= now {
        return Err(TicketFault::Expired);
    }
    let is_too_long = expires_at > issued_at.plus(MAX_TICKET_LIFE);
    if is_too_long || good_from > now {
        return Err(TicketFault::TooLong);
    }
    Ok(TicketGrant { subject, ticket_id: id, issued_at, expires_at })
}

/// The ids of tickets that were used and have not expired.
#[derive(Debug)]
pub struct UsedTickets {
    most: usize,
    since: UnixMillis,
    by_id: BTreeMap<String, UnixMillis>,
    by_expiry: BTreeSet<(UnixMillis, String)>,
}

impl UsedTickets {
    /// Remembers at most so many, from `since` on.
    pub fn new(most: usize, since: UnixMillis) -> Self {
        Self { most, since, by_id: BTreeMap::new(), by_expiry: BTreeSet::new() }
    }

    /// A ticket is used.
    pub fn handle_use(&mut self, grant: &TicketGrant, now: UnixMillis) -> Result<(), TicketFault> {
        if grant.issued_at < self.since {
            return Err(TicketFault::BeforeStart);
        }
        while let Some((expiry, _)) = self.by_expiry.first()
            && *expiry <= now
        {
            let Some((_, id)) = self.by_expiry.pop_first() else { break };
            self.by_id.remove(&id);
        }
        if self.by_id.contains_key(&grant.ticket_id) {
            return Err(TicketFault::Used);
        }
        if self.by_id.len() >= self.most {
            return Err(TicketFault::Full);
        }
        self.by_id.insert(grant.ticket_id.clone(), grant.expires_at);
        self.by_expiry.insert((grant.expires_at, grant.ticket_id.clone()));
        Ok(())
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

    fn claims() -> TicketClaims {
        TicketClaims {
            audiences: vec!["other".to_owned(), "gateway".to_owned()],
            subject: "ada".to_owned(),
            node: "n1".to_owned(),
            issued_at: UnixMillis(NOW.0 - 1_000),
            not_before: Some(NOW),
            expires_at: UnixMillis(NOW.0 + 30_000),
            id: "t1".to_owned(),
        }
    }

    fn fault(claims: TicketClaims) -> Option<TicketFault> {
        judge(claims, "gateway", "n1", NOW).err()
    }

    #[test]
    fn a_ticket_for_this_node_and_this_time_lets_its_subject_in() {
        let grant = judge(claims(), "gateway", "n1", NOW).expect("good");
        assert_eq!((grant.subject.as_str(), grant.ticket_id.as_str()), ("ada", "t1"));
    }

    #[test]
    fn a_ticket_that_is_wrong_in_any_way_lets_nobody_in() {
        let wrong = [
            (TicketClaims { audiences: vec!["api".to_owned()], ..claims() }, TicketFault::Audience),
            (TicketClaims { audiences: Vec::new(), ..claims() }, TicketFault::Audience),
            (TicketClaims { node: "n2".to_owned(), ..claims() }, TicketFault::OtherNode),
            (TicketClaims { expires_at: NOW, ..claims() }, TicketFault::Expired),
            (TicketClaims { expires_at: UnixMillis(NOW.0 + 59_001), ..claims() }, TicketFault::TooLong),
            (TicketClaims { expires_at: UnixMillis(i64::MAX), ..claims() }, TicketFault::TooLong),
            (TicketClaims { issued_at: UnixMillis(NOW.0 + 1), ..claims() }, TicketFault::TooLong),
            (TicketClaims { not_before: Some(UnixMillis(NOW.0 + 1)), ..claims() }, TicketFault::TooLong),
            (TicketClaims { not_before: Some(UnixMillis(i64::MAX)), ..claims() }, TicketFault::TooLong),
            (TicketClaims { issued_at: UnixMillis(i64::MIN), ..claims() }, TicketFault::TooLong),
            (TicketClaims { id: String::new(), ..claims() }, TicketFault::Malformed),
            (TicketClaims { id: "x".repeat(129), ..claims() }, TicketFault::Malformed),
            (TicketClaims { subject: "a\nb".to_owned(), ..claims() }, TicketFault::Malformed),
        ];
        for (claims, expected) in wrong {
            assert_eq!(fault(claims.clone()), Some(expected), "{claims:?}");
        }
    }

    #[test]
    fn a_ticket_waits_for_the_later_of_its_dates() {
        let from = |ms: i64| TicketClaims { not_before: Some(UnixMillis(NOW.0 + ms)), ..claims() };
        assert_eq!(from(4_000).early_by(NOW), Duration::from_secs(4));
        assert_eq!(from(-4_000).early_by(NOW), Duration::ZERO);
        assert_eq!(from(5_001).early_by(NOW), Duration::ZERO, "it is refused at once");
        judge(from(4_000), "gateway", "n1", UnixMillis(NOW.0 + 4_000)).expect("it has come");
    }

    fn grant(id: &str, expires_ms: i64) -> TicketGrant {
        let expires_at = UnixMillis(NOW.0 + expires_ms);
        TicketGrant { subject: "ada".to_owned(), ticket_id: id.to_owned(), issued_at: NOW, expires_at }
    }

    #[test]
    fn a_ticket_is_good_once_and_forgotten_when_it_could_not_be_shown_again() {
        let mut used = UsedTickets::new(10, NOW);
        used.handle_use(&grant("a", 1_000), NOW).expect("new");
        assert_eq!(used.handle_use(&grant("a", 1_000), NOW), Err(TicketFault::Used));
        let later = UnixMillis(NOW.0 + 1_000);
        used.handle_use(&grant("b", 9_000), later).expect("new");
        assert_eq!(used.len(), 1, "the first has expired");
    }

    #[test]
    fn a_full_memory_takes_no_ticket_until_one_expires() {
        let mut used = UsedTickets::new(2, NOW);
        used.handle_use(&grant("a", 1_000), NOW).expect("new");
        used.handle_use(&grant("b", 2_000), NOW).expect("new");
        assert_eq!(used.handle_use(&grant("c", 3_000), NOW), Err(TicketFault::Full));
        used.handle_use(&grant("c", 3_000), UnixMillis(NOW.0 + 1_000)).expect("one has expired");
    }

    #[test]
    fn what_an_earlier_process_took_is_not_taken_again_however_its_issuers_clock_is() {
        let shown = |issued_ms: i64| TicketClaims {
            issued_at: UnixMillis(NOW.0 + issued_ms),
            expires_at: UnixMillis(NOW.0 + issued_ms + 60_000),
            ..claims()
        };
        // It is shown to one process, waits for its date, and is shown to the next as soon as that has begun.
        for issued_ms in [-59_999, -1_000, 0, 1, 4_999, 5_000] {
            let taken_at = NOW.plus(shown(issued_ms).early_by(NOW));
            let grant = judge(shown(issued_ms), "gateway", "n1", taken_at).expect("it is good");
            UsedTickets::new(10, UnixMillis(0)).handle_use(&grant, taken_at).expect("once");
            let started_at = UnixMillis(taken_at.0 + 1);
            let mut next = UsedTickets::new(10, started_at);
            assert_eq!(next.handle_use(&grant, started_at), Err(TicketFault::BeforeStart), "{issued_ms}");
        }
        assert_eq!(shown(5_001).early_by(NOW), Duration::ZERO, "nobody waits for what is too far ahead");
        // What is issued from then on is taken.
        let mut next = UsedTickets::new(10, NOW);
        let grant = judge(shown(0), "gateway", "n1", NOW).expect("it is good");
        next.handle_use(&grant, NOW).expect("new");
        assert!(TicketFault::BeforeStart.to_string().ends_with("get a new one"));
    }

    proptest::proptest! {
        /// Held against the list of all that were taken.
        #[test]
        fn whatever_is_shown_each_is_taken_once_within_its_time_and_no_more_than_are_remembered(
            shown in proptest::collection::vec((0u8..8, 1i64..50, -20i64..1, 0i64..5), 1..200),
        ) {
            let (mut used, mut now) = (UsedTickets::new(4, NOW), NOW.0);
            let mut taken: Vec<(String, i64)> = Vec::new();
            for (id, life, issued, passed) in shown {
                now += passed;
                let grant = TicketGrant {
                    subject: "ada".to_owned(),
                    ticket_id: id.to_string(),
                    issued_at: UnixMillis(now + issued),
                    expires_at: UnixMillis(now + life),
                };
                let stands = || taken.iter().filter(|(_, until)| *until > now);
                let expected = match stands().count() {
                    _ if now + issued < NOW.0 => Err(TicketFault::BeforeStart),
                    _ if stands().any(|(known, _)| *known == grant.ticket_id) => Err(TicketFault::Used),
                    4 => Err(TicketFault::Full),
                    _ => Ok(()),
                };
                proptest::prop_assert_eq!(used.handle_use(&grant, UnixMillis(now)), expected);
                if expected.is_ok() {
                    taken.push((grant.ticket_id, now + life));
                }
                if expected != Err(TicketFault::BeforeStart) {
                    proptest::prop_assert_eq!(used.len(), taken.iter().filter(|(_, until)| *until > now).count());
                }
            }
        }
    }
}
