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
    ("ld.relaxed.sys 12", "", POLL),
    ("ld.relaxed.sys 13", "", POLL),
    ("st.relaxed.sys 3", "", GRANT_WORD),
    ("ld.relaxed.sys 10", "", GRANT_READ),
    ("ld.relaxed.sys 11", "", ENTRY),
];

const USER: &[Reason] = &[
    ("st.release.gpu", "st.release.gpu -> st.relaxed.gpu", TAIL_CACHE),
    ("fence.acq_rel.sys 4", "", NO_DATA),
];

const NO_DATA: &str =
    "equivalent: a flush carries no data, and puts before it have fences of their own";

const EXPERTS: &[Reason] = &[
    ("st.release.gpu", "st.release.gpu -> st.relaxed.gpu", TAIL_CACHE),
    ("bar.warp.sync", "bar.warp.sync -> removed", TOGETHER),
    ("experts_route: fence.acq_rel.sys 1", "", COUNT_OF_BLOCKS),
    ("experts_route: fence.acq_rel.sys 2", "", COUNT_OF_BLOCKS),
    ("experts_send: fence.acq_rel.sys 1", "", COUNT_OF_BLOCKS),
    ("experts_send: fence.acq_rel.sys 2", "", COUNT_OF_BLOCKS),
    ("experts_return: fence.acq_rel.sys 1", "", COUNT_OF_BLOCKS),
    ("experts_return: fence.acq_rel.sys 2", "", COUNT_OF_BLOCKS),
    ("experts_relay: fence.acq_rel.sys 1", "", COUNT_OF_BLOCKS),
    ("experts_relay: fence.acq_rel.sys 2", "", COUNT_OF_BLOCKS),
    ("experts_gather: fence.acq_rel.sys 1", "", COUNT_OF_BLOCKS),
    ("experts_gather: fence.acq_rel.sys 2", "", COUNT_OF_BLOCKS),
    ("experts_await: fence.acq_rel.sys 7", "", TWO_WAITS),
    ("experts_await: fence.acq_rel.sys 10", "", TWO_WAITS),
    ("experts_await: fence.acq_rel.sys 13", "", TWO_WAITS),
    ("experts_await_relayed: fence.acq_rel.sys 5", "", TWO_WAITS),
    ("experts_await_relayed: fence.acq_rel.sys 6", "", TWO_WAITS),
    ("experts_await_returns: fence.acq_rel.sys 5", "", TWO_WAITS),
    ("experts_await_returns: fence.acq_rel.sys 8", "", TWO_WAITS),
    ("experts_await_returns: fence.acq_rel.sys 11", "", TWO_WAITS),
    ("experts_await: atom.relaxed.gpu 9", "", SENT_BEFORE),
    ("experts_await: atom.relaxed.gpu 15", "", SENT_BEFORE),
    ("experts_await_relayed: atom.relaxed.gpu 5", "", SENT_BEFORE),
    ("experts_await_relayed: atom.relaxed.gpu 11", "", SENT_BEFORE),
    ("experts_await_returns: atom.relaxed.gpu 5", "", SENT_BEFORE),
    ("experts_await_returns: atom.relaxed.gpu 11", "", SENT_BEFORE),
    ("experts_await_gathered: bar.red.or.pred 1", "", NO_ANSWER),
    ("experts_receive: bar.red.or.pred 1", "", MAY_LACK),
];

const MAY_LACK: &str = "equivalent: a step that fails may lack rows, and rows that lanes have left \
                        out are no more than that; the barrier is there since lanes that have \
                        ended must not be asked by a shuffle, which this model lets them be";

/// A wait for a far rank opens the port that receives from it and the one that sends to it
/// (experts.cuh: wait_for). The launch of the same step that sent to the rank has opened the second
/// one too (announce), unless it had given up the rank, which the wait then skips; so it has
/// refused a bad number, with an exchange at GPU scope, before this launch began. Only the first
/// port of the two can be news to a wait.
const SENT_BEFORE: &str = "equivalent: the launch that sent to this rank has refused the same \
                          port, and left the claim taken; the end of a launch orders that before \
                          the next one of its stream, and coherence keeps it so: this exchange \
                          fails";

const NO_ANSWER: &str = "equivalent: nobody uses its answer; only in a group that goes on does a \
                         thread read behind it what others wrote, and such a group relays \
                         nothing; the end of the launch orders the rest";

const TOGETHER: &str =
    "equivalent: it brings the lanes of a warp together, which do not depend on one another";
const COUNT_OF_BLOCKS: &str = "equivalent: the counter is of one GPU, whose blocks it orders at \
                               that scope; causality order is transitive across scopes, and the \
                               fence of the system before a word or a doorbell carries this on";
const TWO_WAITS: &str = "equivalent: one thread waits for the message and for the completion of \
                         its own; the fence behind either wait orders what both have seen";

const TAIL_CACHE: &str =
    "equivalent: the fence behind the wait for `tail` comes before it, and both are a release";
const CONVERGE: &str =
    "equivalent: a barrier of the block follows; this one brings the warp together for it";
pub(super) const SEEN_BEFORE: &str =
    "equivalent: the thread has seen the word set, by a strong load; coherence keeps it so";
pub(super) const FIRST_EXCHANGE: &str =
    "equivalent: the word holds a stray value that the thread has seen, so this exchange fails";
const POLL: &str =
    "equivalent: one thread polls here for the block; all read the words again and check them";
const GRANT_WORD: &str =
    "equivalent: fence, descriptor and the engine's acquire lead from it to the engine's read";
const GRANT_READ: &str =
    "equivalent: the credit that was waited for comes behind the word, which nobody writes then";
const ENTRY: &str =
    "equivalent: the host wrote the entry before the peer could grant; nobody changes it then";
