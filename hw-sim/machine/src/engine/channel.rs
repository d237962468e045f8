//! One channel: its life as BAR.md tells it, and how it ends when something is wrong.

use super::dma::{Dma, DmaFault};
use super::link::{Door, Outbound};
use super::queue::{Lanes, error_without_request};
use super::registers::ChannelRegisters;
use ringdove_kernels::bar::{
    CONTROL_OFFSET, Command, Control, ErrorCode, ErrorRecord, State, Status,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::offset_of;

/// Names a channel among all engines that reach one another: the engine's link address, and its
/// number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ChannelAddress {
    pub link_address: u64,
    pub channel: u64,
}

/// Where a channel is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Ready,
    Running,
    /// Takes nothing more; what is under way ends.
    Halting,
    Stopped,
}

impl Phase {
    fn state(self) -> State {
        match self {
            Self::Ready => State::Ready,
            Self::Running | Self::Halting => State::Running,
            Self::Stopped => State::Stopped,
        }
    }
}

/// A channel that is served.
pub(super) struct Channel {
    pub place: ChannelAddress,
    /// Which engine of this process's node it belongs to.
    pub engine: usize,
    pub registers: ChannelRegisters,
    pub phase: Phase,
    /// The host's registers as they were at Run.
    pub control: Control,
    pub status: Status,
    shown: Status,
    pub failed: bool,
    /// Slots that were copied out of the ring and not taken yet.
    pub seen: VecDeque<[u64; 2]>,
    /// The tail as it was written last.
    pub tail: u64,
    /// The descriptor that found its lane full, if the next one did.
    pub stalled_at: Option<u64>,
    pub lanes: Lanes,
    /// Where in the peer table a sender was found last.
    pub senders: HashMap<ChannelAddress, u64>,
    /// Where other processes knock, if there are any.
    pub door: Option<Door>,
    /// Pipes to channels of other processes.
    pub outbound: BTreeMap<ChannelAddress, Outbound>,
}

impl Channel {
    /// Serves a channel: it begins with a reset.
    pub fn new(
        place: ChannelAddress,
        engine: usize,
        registers: ChannelRegisters,
        door: Option<Door>,
    ) -> Self {
        registers.clear_command();
        let mut channel = Self {
            place,
            engine,
            registers,
            phase: Phase::Ready,
            control: Control::default(),
            status: Status::default(),
            shown: Status::default(),
            failed: false,
            seen: VecDeque::new(),
            tail: 0,
            stalled_at: None,
            lanes: Lanes::default(),
            senders: HashMap::new(),
            door,
            outbound: BTreeMap::new(),
        };
        channel.reset();
        channel
    }

    /// Stops everything, zeroes what a reset zeroes, and is ready.
    pub fn reset(&mut self) {
        self.lanes = Lanes::default();
        self.seen.clear();
        self.senders.clear();
        self.outbound.clear();
        self.control = Control::default();
        self.status = Status::default();
        (self.failed, self.tail, self.stalled_at) = (false, 0, None);
        self.phase = Phase::Ready;
        self.registers.zero();
        // What the registers show now.
        self.shown = Status::default();
        self.show();
    }

    /// Obeys the host. True if there was something to obey.
    pub fn obey(&mut self, dma: &Dma<'_>) -> bool {
        const RESET: u64 = Command::Reset as u64;
        const RUN: u64 = Command::Run as u64;
        const HALT: u64 = Command::Halt as u64;
        match (self.registers.command(), self.phase) {
            (RESET, Phase::Ready) => return false,
            (RESET, _) => self.reset(),
            (RUN, Phase::Ready) => self.run(dma),
            (HALT, Phase::Running) => self.halt(),
            (HALT, Phase::Ready) => self.phase = Phase::Stopped,
            (RUN | HALT, _) | (_, Phase::Stopped) => return false,
            (unknown, _) => {
                let offset = CONTROL_OFFSET + offset_of!(Control, command) as u64;
                // A channel that was not told to run fails as one that was.
                self.phase = Phase::Running;
                self.fail_by_register(dma, offset, unknown);
            }
        }
        true
    }

    fn run(&mut self, dma: &Dma<'_>) {
        self.control = self.registers.control();
        let Control { ring_log2, tail_address, abort_address, generation, .. } = self.control;
        let aligned = |address: u64, to: u64| address != 0 && address.is_multiple_of(to);
        let ring_log2_max = self.registers.identity().ring_log2_max;
        let wrong = [
            (ring_log2 > ring_log2_max, offset_of!(Control, ring_log2), ring_log2),
            (!aligned(tail_address, 8), offset_of!(Control, tail_address), tail_address),
            (
                abort_address != 0 && !aligned(abort_address, 4),
                offset_of!(Control, abort_address),
                abort_address,
            ),
            (generation == 0, offset_of!(Control, generation), generation),
        ];
        self.phase = Phase::Running;
        if let Some((_, offset, seen)) = wrong.into_iter().find(|(wrong, ..)| *wrong) {
            self.fail_by_register(dma, CONTROL_OFFSET + offset as u64, seen);
        }
    }

    fn fail_by_register(&mut self, dma: &Dma<'_>, offset: u64, seen: u64) {
        let position = self.status.position;
        self.fail(dma, &error_without_request(ErrorCode::BadRegister, position, seen, offset));
    }

    fn halt(&mut self) {
        self.phase = Phase::Halting;
        self.seen.clear();
        self.status.in_flight -= self.lanes.drop_waiting();
        self.stop_if_drained();
    }

    /// A halting channel stops once no request is in flight.
    pub fn stop_if_drained(&mut self) {
        if self.phase == Phase::Halting && self.status.in_flight == 0 {
            self.phase = Phase::Stopped;
        }
    }

    /// Ends the channel: error record, abort word, and nothing is under way any more. The first
    /// error stays.
    pub fn fail(&mut self, dma: &Dma<'_>, record: &ErrorRecord) {
        if self.failed || !matches!(self.phase, Phase::Running | Phase::Halting) {
            return;
        }
        self.failed = true;
        self.registers.show_error(record);
        if self.control.abort_address != 0 {
            // Where it cannot be written, the record has to do.
            let _: Result<(), DmaFault> = dma.raise(self.control.abort_address);
        }
        self.lanes = Lanes::default();
        self.seen.clear();
        self.outbound.clear();
        self.status.in_flight = 0;
        self.phase = Phase::Stopped;
    }

    /// Ends the channel for an address that the engine could not write.
    pub fn fail_by_write(&mut self, dma: &Dma<'_>, address: u64) {
        let position = self.status.position;
        self.fail(dma, &error_without_request(ErrorCode::WriteFault, position, address, 0));
    }

    /// Does the channel take packets?
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Halting)
    }

    /// Shows the counters and the state, where they have changed.
    pub fn show(&mut self) {
        self.status.state = self.phase.state() as u64;
        if self.status != self.shown {
            self.registers.show(&self.status, &self.shown);
            self.shown = self.status;
        }
    }
}
