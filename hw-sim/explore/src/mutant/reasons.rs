//! Why nobody notices some mutants.

use super::Subject;

/// A kind of site and the change, or one site (any change, then); the reason. Sites are numbered in
/// the order of the PTX: whoever changes the code looks at these again.
type Reason = (&'static str, &'static str, &'static str);

/// Those of a subject.
pub(super) fn of(subject: Subject) -> &'static [Reason] {
    match subject {
        Subject::Executor => EXECUTOR,
        Subject::User => USER,
        Subject::Experts => EXPERTS,
    }
}

const EXECUTOR: &[Reason] = &[
    ("st.release.gpu", "st.release.gpu -> st.relaxed.gpu", TAIL_CACHE),
    ("bar.warp.sync", "bar.warp.sync -> removed", CONVERGE),
    // Where a launch or a wait was stopped by a stray claim.
    ("ld.relaxed.gpu 2", "", SEEN_BEFORE),
    ("ld.relaxed.gpu 3", "", SEEN_BEFORE),
    ("ld.relaxed.gpu 5", "", SEEN_BEFORE),
    ("ld.relaxed.gpu 7", "", SEEN_BEFORE),
    ("ld.relaxed.gpu 11", "", SEEN_BEFORE),
    ("ld.relaxed.gpu 12", "", SEEN_BEFORE),
    ("atom.relaxed.gpu 1", "", FIRST_EXCHANGE),
    ("atom.relaxed.gpu 3", "", FIRST_EXCHANGE),
    ("atom.relaxed.gpu 9", "", FIRST_EXCHANGE),
    ("atom.relaxed.gpu 11", "", FIRST_EXCHANGE),
    ("atom.relaxed.gpu 17", "", FIRST_EXCHANGE),
    ("atom.relaxed.gpu 21", "", FIRST_EXCHANGE),
    ("ld.relaxed.sys 12", "", POLL),
    ("ld.relaxed.sys 13", "", POLL),
    ("st.relaxed.sys 3", "", GRANT_WORD),
    ("ld.relaxed.sys 10", "", GRANT_READ),
    ("ld.relaxed.sys 11", "", ENTRY),
];

const USER: &[Reason] = &[("st.release.gpu", "st.release.gpu -> st.relaxed.gpu", TAIL_CACHE)];

const EXPERTS: &[Reason] = &[("st.release.gpu", "st.release.gpu -> st.relaxed.gpu", TAIL_CACHE)];

const TAIL_CACHE: &str =
    "equivalent: the fence behind the wait for `tail` comes before it, and both are a release";
const CONVERGE: &str =
    "equivalent: a barrier of the block follows; this one brings the warp together for it";
const SEEN_BEFORE: &str =
    "equivalent: the thread has seen the word set, by a strong load; coherence keeps it so";
const FIRST_EXCHANGE: &str =
    "equivalent: the word holds a stray value that the thread has seen, so this exchange fails";
const POLL: &str =
    "equivalent: one thread polls here for the block; all read the words again and check them";
const GRANT_WORD: &str =
    "equivalent: fence, descriptor and the engine's acquire lead from it to the engine's read";
const GRANT_READ: &str =
    "equivalent: the credit that was waited for comes behind the word, which nobody writes then";
const ENTRY: &str =
    "equivalent: the host wrote the entry before the peer could grant; nobody changes it then";
