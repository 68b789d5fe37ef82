//! Whether an entry may be left out of every PostgreSQL (`EntryKind::Skip`): only if no member shows it.  If one does,
//! the others copy that one's PostgreSQL instead.
//!
//! The answer rests on what the asked node knows now, so it is a guard for the operator and not an invariant.  Whatever
//! the answer was, regions that show the same index are equal: a PostgreSQL that shows an entry cannot apply the one
//! that leaves it out, and is copied anew from one that could.

use crate::ids::{LogIndex, NodeId};
use crate::members::{Member, Members};

/// How far the PostgreSQL of another member is, as far as the asked node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// It cannot be reached, or has not said where it stands; with what it said last.
    Away(Option<LogIndex>),
    /// `still`: it has shown nothing newer for so long that it will not get on by itself.
    Stands { applied: LogIndex, still: bool },
}

/// The asked node's own PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    pub node: NodeId,
    /// `None`: it has no PostgreSQL, or that has not said where it stands.
    pub applied: Option<LogIndex>,
    /// The entry that it tries to apply again and again.
    pub stands_at: Option<LogIndex>,
    /// The committed entry before the one to be left out.
    pub previous: Option<LogIndex>,
}

/// Why `index` is not to be left out, in a sentence that says what to do.  With `force`, members that are away or do
/// not get there are not waited for.
pub fn refusal(
    index: LogIndex,
    own: Own,
    members: &Members,
    other: impl Fn(NodeId) -> Other,
    force: bool,
) -> Option<String> {
    let region = members.region_of(own.node).cloned().unwrap_or_default();
    let Some(applied) = own.applied else {
        return Some("this node's PostgreSQL has not said where it stands: ask a node whose PostgreSQL runs".into());
    };
    if applied >= index {
        return Some(format!(
            "region {region} shows log index {index}; a region that cannot apply it copies another's PostgreSQL, and nothing need be left out"
        ));
    }
    match own.stands_at {
        None => {
            return Some(format!(
                "region {region} does not stand still: it shows log index {applied} and has not failed again and again at what follows"
            ))
        }
        Some(at) if at != index => {
            return Some(format!("region {region} stands still at log index {at}, not at {index}; see `onetrip status`"))
        }
        Some(_) => {}
    }
    let others = members.members.iter().filter(|m| m.id != own.node && m.role.has_postgres());
    others.filter_map(|m| why_not(index, own.previous, m, other(m.id), force)).next()
}

fn why_not(index: LogIndex, previous: Option<LogIndex>, m: &Member, other: Other, force: bool) -> Option<String> {
    let who = format!("region {} (node {})", m.region, m.id);
    match other {
        Other::Stands { applied, .. } if applied >= index => Some(format!(
            "{who} shows log index {index}, and a region that cannot apply it copies that one's PostgreSQL: by itself after \
             onetrip.rebuild_after, at most once an hour; `onetrip status` says why not yet"
        )),
        Other::Stands { applied, .. } if Some(applied) != previous => (!force).then(|| {
            format!(
                "{who} shows log index {applied} and has not come to {index} yet: wait until it shows it or stands still there. If it \
                 cannot get there, because it waits for a copy itself (`onetrip status`), use --force"
            )
        }),
        Other::Stands { still: false, .. } => {
            Some(format!("{who} may be about to apply log index {index}: ask again in a few seconds"))
        }
        Other::Stands { still: true, .. } => None,
        Other::Away(_) if force => None,
        Other::Away(last) => {
            let shows = match last {
                Some(applied) if applied >= index => "shows it",
                _ => "may show it",
            };
            Some(format!(
                "{who} {shows} and cannot be reached: bring it back, and the others copy its PostgreSQL. If it is lost, or if what it \
                 alone has is to be given up, use --force: it then copies another region's PostgreSQL when it comes back"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::MemberRole;

    fn members() -> Members {
        let member = |id: u32| Member {
            id: NodeId(id),
            region: format!("r{id}").as_str().into(),
            address: format!("h:{id}"),
            role: if id == 4 { MemberRole::Witness } else { MemberRole::Voter },
            voter: true,
            slot: (id < 4).then_some(id),
            replaces: None,
            joined: None,
        };
        Members::bootstrap((1..=4).map(member).collect(), "r1".into(), 8)
    }

    fn at(applied: u64, still: bool) -> Other {
        Other::Stands { applied: LogIndex(applied), still }
    }

    /// Node 2 is asked to leave out 17, which follows 15.
    fn asked(one: Other, three: Other, force: bool) -> String {
        let own = Own {
            node: NodeId(2),
            applied: Some(LogIndex(15)),
            stands_at: Some(LogIndex(17)),
            previous: Some(LogIndex(15)),
        };
        refused(own, one, three, force)
    }

    fn refused(own: Own, one: Other, three: Other, force: bool) -> String {
        let other = |id| match id {
            NodeId(1) => one,
            NodeId(3) => three,
            id => panic!("node {id} has no PostgreSQL, or was asked itself"),
        };
        refusal(LogIndex(17), own, &members(), other, force).unwrap_or_default()
    }

    #[test]
    fn an_entry_is_left_out_only_if_nobody_shows_it() {
        assert_eq!(asked(at(15, true), at(15, true), false), "");
        assert!(asked(at(17, true), at(15, true), true).contains("region r1 (node 1) shows log index 17"));
        assert!(asked(at(15, true), at(12, true), false).contains("has not come to 17 yet"));
        assert_eq!(asked(at(15, true), at(12, true), true), "");
        assert!(asked(at(15, true), at(15, false), true).contains("ask again"));
    }

    #[test]
    fn who_is_away_is_given_up_only_if_that_is_said() {
        let (shows, silent) = (Other::Away(Some(LogIndex(20))), Other::Away(None));
        assert!(asked(shows, at(15, true), false).contains("shows it and cannot be reached"));
        assert!(asked(silent, at(15, true), false).contains("may show it and cannot be reached"));
        assert_eq!(asked(shows, silent, true), "");
    }

    #[test]
    fn the_asked_region_must_stand_still_at_that_entry() {
        let own = |applied: u64, stands_at: Option<u64>| Own {
            node: NodeId(2),
            applied: Some(LogIndex(applied)),
            stands_at: stands_at.map(LogIndex),
            previous: Some(LogIndex(15)),
        };
        let why = |own| refused(own, at(15, true), at(15, true), true);
        assert!(why(own(17, None)).contains("region r2 shows log index 17"));
        assert!(why(own(15, None)).contains("does not stand still"));
        assert!(why(own(12, Some(13))).contains("stands still at log index 13, not at 17"));
        assert!(why(Own { applied: None, ..own(0, None) }).contains("has not said where it stands"));
    }
}
