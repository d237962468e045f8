//! Mutants of the host's code: one ordering, lap bit, credit, flag or check at a time is weakened
//! in a copy of the source, all of them in one build; a variable says which one is in force.

/// The variable: the number of the mutant, from 1 on; without it none is in force.
pub const VARIABLE: &str = "RINGDOVE_HOST_MUTANT";

/// What is weakened.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// What stands there, once in the file.
    pub text: &'static str,
    /// What stands there instead; `{is}` says whether the mutant is in force.
    pub weaker: &'static str,
    /// In words.
    pub what: &'static str,
    /// Why nobody notices it, if that is known.
    pub reason: Option<&'static str>,
}

const fn site(
    file: &'static str,
    text: &'static str,
    weaker: &'static str,
    what: &'static str,
    reason: Option<&'static str>,
) -> Site {
    Site { file, text, weaker, what, reason }
}

const CONSUMER: &str = "src/ring/consumer.rs";
const CURSOR: &str = "src/ring/cursor.rs";
const PRODUCER: &str = "src/ring/producer.rs";
const ATTACHMENT: &str = "src/engine/attachment.rs";
const CONTROL: &str = "src/engine/control.rs";
const PROXY: &str = "src/engine/proxy.rs";
const ROUTE: &str = "src/engine/route.rs";
const WATCH: &str = "src/engine/watch.rs";
const CHANNEL: &str = "src/engine/device/channel.rs";
const TABLES: &str = "src/engine/device/tables.rs";
const PEER: &str = "src/transport/peer/mod.rs";
const SIGNALS: &str = "src/transport/verbs/signals.rs";
const ARRIVALS: &str = "src/transport/verbs/arrivals.rs";
const VERBS_CONTROL: &str = "src/transport/verbs/control.rs";
const RECEIVE: &str = "src/transport/verbs/receive.rs";

const X86: Option<&str> = Some(
    "gap: x86 orders these accesses in any case, and no simulated agent runs this code; the pair \
     is by argument alone",
);
const CHANNEL_ORDERS: Option<&str> = Some(
    "equivalent: the channel of commands orders what is sent through it; the count only says that \
     there is something",
);
const ONE_WORD: Option<&str> = Some(
    "equivalent in this model: both words are stored behind the same fence, so the acquire of the \
     other one suffices",
);
const UNCACHED: Option<&str> = Some(
    "gap: x86 orders these accesses in any case; the BAR of a real engine is uncached memory, \
     which orders them too",
);

/// `Ordering::Acquire` or `Ordering::Release` of one access.
macro_rules! relaxed {
    ($file:expr, $before:literal, $order:literal, $behind:literal, $what:literal, $reason:expr) => {
        site(
            $file,
            concat!($before, "Ordering::", $order, $behind),
            concat!(
                $before,
                "if {is} { Ordering::Relaxed } else { Ordering::",
                $order,
                " }",
                $behind
            ),
            $what,
            $reason,
        )
    };
}

/// All sites.
pub const SITES: &[Site] = &[
    relaxed!(
        CONSUMER,
        "self.tail.store(self.next.0, ",
        "Release",
        ");",
        "the store of the tail is relaxed",
        None
    ),
    relaxed!(
        CONSUMER,
        "self.slots.load(index + 1, ",
        "Acquire",
        ");",
        "the load of the second word is relaxed",
        ONE_WORD
    ),
    relaxed!(
        CONSUMER,
        "self.slots.load(index, ",
        "Acquire",
        ");",
        "the load of the first word is relaxed",
        ONE_WORD
    ),
    site(
        CONSUMER,
        "if !self.size.is_committed(high, position) {",
        "if !{is} && !self.size.is_committed(high, position) {",
        "the lap bit of the second word is not looked at",
        None,
    ),
    site(
        CONSUMER,
        "self.size.is_committed(low, position).then_some",
        "({is} || self.size.is_committed(low, position)).then_some",
        "the lap bit of the first word is not looked at",
        None,
    ),
    site(
        CONSUMER,
        "let limit = out.len().min(self.size.slots() as usize);",
        "let limit = if {is} { out.len() } else { out.len().min(self.size.slots() as usize) };",
        "a batch goes beyond one lap",
        Some(
            "equivalent: the slots behind one lap are those of this batch, whose lap bits are old \
             until they are freed",
        ),
    ),
    site(
        CONSUMER,
        "self.load(self.next).is_none()",
        "({is} || self.load(self.next).is_none())",
        "a ring always says that it is empty",
        None,
    ),
    site(
        CONSUMER,
        "self.next = self.next.advance(1);",
        "self.next = self.next.advance(1);\n            if {is} { self.tail.store(self.next.0 + 1, \
         Ordering::Release) }",
        "the tail frees one slot more than was read",
        None,
    ),
    site(
        CURSOR,
        "(position.0 >> self.log2) & 1 == 0",
        "({is} || (position.0 >> self.log2) & 1 == 0)",
        "the lap bit is the same in each lap",
        None,
    ),
    site(
        CURSOR,
        "position.0.wrapping_sub(tail.0) < self.slots()",
        "position.0.wrapping_sub(tail.0) < self.slots() + {is} as u64",
        "a producer takes one slot more than there are",
        None,
    ),
    relaxed!(
        PRODUCER,
        "self.tail_cache.load(",
        "Acquire",
        ");",
        "the load of the cached tail is relaxed",
        X86
    ),
    relaxed!(
        PRODUCER,
        "let tail = self.tail.load(",
        "Acquire",
        ");",
        "the load of the tail is relaxed",
        X86
    ),
    relaxed!(
        PRODUCER,
        "self.tail_cache.fetch_max(tail, ",
        "Release",
        ");",
        "the store of the cached tail is relaxed",
        X86
    ),
    relaxed!(
        PRODUCER,
        "self.slots.store(index, words[0], ",
        "Release",
        ");",
        "the store of the first word is relaxed",
        X86
    ),
    relaxed!(
        PRODUCER,
        "self.slots.store(index + 1, words[1], ",
        "Release",
        ");",
        "the store of the second word is relaxed",
        X86
    ),
    site(
        PRODUCER,
        "descriptor.encode(self.size.lap_bit(position))",
        "descriptor.encode({is} || self.size.lap_bit(position))",
        "a producer writes the lap bit of lap 0 in each lap",
        None,
    ),
    site(
        PRODUCER,
        "self.tail_cache.fetch_max(tail, ",
        "self.tail_cache.fetch_max(tail + {is} as u64, ",
        "the cached tail is one too far",
        None,
    ),
    relaxed!(
        ATTACHMENT,
        "self.shared.commands_sent.load(",
        "Acquire",
        ")",
        "the load of the count of commands is relaxed",
        CHANNEL_ORDERS
    ),
    site(
        ATTACHMENT,
        "if self.condition == Condition::Serving && self.parts.alarm.is_raised() {",
        "if !{is} && self.condition == Condition::Serving && self.parts.alarm.is_raised() {",
        "an engine goes on after an alarm",
        None,
    ),
    site(
        ATTACHMENT,
        "inbox.len().min(self.pending_max - self.pending.len())",
        "inbox.len().min(if {is} { usize::MAX } else { self.pending_max - self.pending.len() })",
        "descriptors are taken without room for their transfers",
        None,
    ),
    site(
        ATTACHMENT,
        "if self.table.route(RouteId(descriptor.route)).is_none() {",
        "if !{is} && self.table.route(RouteId(descriptor.route)).is_none() {",
        "a route that was added meanwhile is unknown",
        None,
    ),
    site(
        ATTACHMENT,
        "lane.last_pending = self.pending_first + self.pending.len() as u64;",
        "lane.last_pending = self.pending_first + self.pending.len() as u64 + {is} as u64;",
        "a transfer may be merged into one of another lane",
        None,
    ),
    site(
        ATTACHMENT,
        "&& last.route == next.route",
        "&& ({is} || last.route == next.route)",
        "transfers of several routes are merged",
        None,
    ),
    site(
        ATTACHMENT,
        "&& last.source + last.length == next.source",
        "&& ({is} || last.source + last.length == next.source)",
        "transfers whose sources lie apart are merged",
        None,
    ),
    site(
        ATTACHMENT,
        "&& last.destination + last.length == next.destination",
        "&& ({is} || last.destination + last.length == next.destination)",
        "transfers whose destinations lie apart are merged",
        None,
    ),
    site(
        ATTACHMENT,
        "&& last.length + next.length <= bytes_max;",
        "&& ({is} || last.length + next.length <= bytes_max);",
        "transfers are merged without a bound",
        None,
    ),
    site(
        ATTACHMENT,
        "next.arrival.or(last.arrival)",
        "if {is} { last.arrival.or(next.arrival) } else { next.arrival.or(last.arrival) }",
        "a merged transfer raises the lower count of arrivals",
        None,
    ),
    site(
        ATTACHMENT,
        "next.completion.or(last.completion)",
        "if {is} { last.completion.or(next.completion) } else { \
         next.completion.or(last.completion) }",
        "a merged transfer raises the lower count of completions",
        None,
    ),
    site(
        ATTACHMENT,
        "self.pending_first += accepted as u64;",
        "self.pending_first += if {is} { 0 } else { accepted as u64 };",
        "places of transfers that wait are not moved on",
        None,
    ),
    site(
        ATTACHMENT,
        "self.in_flight += accepted as u64;",
        "self.in_flight += if {is} { 0 } else { accepted as u64 };",
        "what a transport took does not count as in flight",
        None,
    ),
    site(
        ATTACHMENT,
        "let ring = self.condition == Condition::Serving && !self.parts.consumer.is_empty();",
        "let ring = !{is} && self.condition == Condition::Serving && \
         !self.parts.consumer.is_empty();",
        "an attachment leaves with descriptors in its ring",
        None,
    ),
    site(
        ATTACHMENT,
        "if ring || !self.pending.is_empty() || self.in_flight > 0 {",
        "if ring || !self.pending.is_empty() || !{is} && self.in_flight > 0 {",
        "an attachment leaves with transfers in flight",
        None,
    ),
    relaxed!(
        CONTROL,
        "commands_sent.fetch_add(1, ",
        "Release",
        ");",
        "the count of commands is relaxed",
        CHANNEL_ORDERS
    ),
    site(
        PROXY,
        "(unfinished.is_none() || now >= deadline).then_some",
        "({is} || unfinished.is_none() || now >= deadline).then_some",
        "a detach waits for nothing",
        None,
    ),
    site(
        ROUTE,
        "if !route.source.holds(descriptor.source_offset, length) {",
        "if !{is} && !route.source.holds(descriptor.source_offset, length) {",
        "the range of a source is not checked (R8)",
        None,
    ),
    site(
        ROUTE,
        "if !route.destination.holds(descriptor.destination_offset, length) {",
        "if !{is} && !route.destination.holds(descriptor.destination_offset, length) {",
        "the range of a destination is not checked (R8)",
        None,
    ),
    site(
        ROUTE,
        "end <= self.length_bytes",
        "end <= self.length_bytes + {is} as u64",
        "ranges may end one byte too late (R8)",
        None,
    ),
    site(
        ROUTE,
        "(false, _) => Ok(None),",
        "(false, address) => Ok(address.filter(|_| {is})),",
        "signals are raised that nobody asked for",
        None,
    ),
    site(
        ROUTE,
        "SignalWrite { address, value: *count }",
        "SignalWrite { address, value: *count + {is} as u64 }",
        "signals are one count ahead (R9)",
        None,
    ),
    site(
        ROUTE,
        "raise(address, &mut state.completions)",
        "raise(address, if {is} { &mut state.arrivals } else { &mut state.completions })",
        "completions take the counts of arrivals",
        None,
    ),
    relaxed!(
        WATCH,
        "self.state.load(",
        "Acquire",
        ")",
        "the load of a record's state is relaxed",
        X86
    ),
    site(
        WATCH,
        "if self.state.load(",
        "if !{is} && self.state.load(",
        "a record is read before it is complete (R10)",
        None,
    ),
    relaxed!(
        CHANNEL,
        "self.words.store(place, command as u64, ",
        "Release",
        ");",
        "the store of a command to an engine is relaxed",
        UNCACHED
    ),
    relaxed!(
        CHANNEL,
        "STATUS_OFFSET, 8 * index), ",
        "Acquire",
        ");",
        "the loads of an engine's status are relaxed",
        UNCACHED
    ),
    relaxed!(
        TABLES,
        "self.words().store(valid, 0, ",
        "Release",
        ");",
        "the store that takes a route away is relaxed",
        UNCACHED
    ),
    relaxed!(
        TABLES,
        "self.words().store(last, 1, ",
        "Release",
        ");",
        "the store that enters a route is relaxed",
        UNCACHED
    ),
    site(
        PEER,
        "let index = transfer.lane.0 as usize % COPY_STREAMS;",
        "let index = if {is} { self.polls as usize } else { transfer.lane.0 as usize } % COPY_STREAMS;",
        "transfers of one lane go by several streams (R11)",
        None,
    ),
    site(
        PEER,
        "if transfer.length > 0 {",
        "if transfer.length > 0 && !{is} {",
        "a transfer raises its signals without its data",
        None,
    ),
    site(
        PEER,
        "tally.pending += 1;",
        "tally.pending += u64::from(!{is});",
        "copies do not count as in flight",
        None,
    ),
    relaxed!(
        SIGNALS,
        "word.store(signal.value, ",
        "Release",
        ");",
        "the store of a signal by the host is relaxed",
        X86
    ),
    site(
        ARRIVALS,
        "self.received.push(signal);",
        "if {is} { self.writer.raise(&[signal])? } else { self.received.push(signal) }",
        "a signal is raised before the flush behind its data (R9)",
        None,
    ),
    relaxed!(
        VERBS_CONTROL,
        "self.sent.fetch_add(1, ",
        "Release",
        ");",
        "the count of changes to a transport is relaxed",
        CHANNEL_ORDERS
    ),
    relaxed!(
        VERBS_CONTROL,
        "self.sent.load(",
        "Acquire",
        ")",
        "its load is relaxed",
        CHANNEL_ORDERS
    ),
    relaxed!(
        RECEIVE,
        "self.credit.load(",
        "Acquire",
        ")",
        "the load of a peer's credits is relaxed",
        Some(
            "equivalent: nothing is read on its strength; the word counts receive requests that \
             the adapter holds",
        )
    ),
    site(
        RECEIVE,
        "min(self.sent) < u64::from(self.peer.depth)",
        "min(self.sent) < u64::from(self.peer.depth) + 64 * u64::from({is})",
        "more immediates are sent than the peer has receive requests for",
        None,
    ),
];

/// A file with the sites of it that are weakened when their number is in force.
///
/// # Errors
///
/// A site is not there, or more than once.
pub fn rewrite(file: &str, mut text: String) -> Result<String, String> {
    for (number, site) in (1..).zip(SITES).filter(|(_, site)| site.file == file) {
        let count = text.matches(site.text).count();
        if count != 1 {
            return Err(format!("{file}: expected once, found {count} times: {}", site.text));
        }
        let is = format!("crate::host_mutant::is({number})");
        text = text.replacen(site.text, &site.weaker.replace("{is}", &is), 1);
    }
    // What asks for a variable is no constant.
    if file == CURSOR { Ok(text.replace("pub const fn", "pub fn")) } else { Ok(text) }
}

/// The module by which the copy of the library knows which mutant is in force.
pub const MODULE: &str = r#"
//! Which mutant is in force.
use std::sync::OnceLock;

/// Is it this one?
pub fn is(number: u32) -> bool {
    static NUMBER: OnceLock<u32> = OnceLock::new();
    let read = || std::env::var("RINGDOVE_HOST_MUTANT").ok().and_then(|it| it.parse().ok());
    *NUMBER.get_or_init(|| read().unwrap_or(0)) == number
}
"#;
