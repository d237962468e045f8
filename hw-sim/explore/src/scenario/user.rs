//! Calls of `ringdove.cuh` by users' kernels: rank 0 sends what its threads have copied, rank 1
//! waits, copies it and sends it back, and rank 0 copies what has come. Each block has a lane of
//! its own; or it stores into the peer's windows and raises words there.

use ringdove_kernels::port::Port;
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};

use super::{Scenario, Setup, buffer_bytes};
use crate::engine::Route;
use crate::fault::Fault;
use crate::rank::NEVER_NS;

/// Input, output, what is about to be put, what has come from the peer, and words.
const WINDOWS: u32 = 5;
const INPUT: u32 = 0;
const OUTPUT: u32 = 1;
const STAGE: u32 = 2;
const ARRIVED: u32 = 3;
const WORDS: u32 = 4;
/// Bytes between words of blocks.
const WORD_STRIDE: u64 = 32;

/// A call, as `test_calls.cu` has it.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Call {
    kind: u32,
    peer: u32,
    lane: u32,
    to: u32,
    from: u32,
    count: u32,
    to_offset: u64,
    from_offset: u64,
    bytes: u64,
}

/// A rank that there is none.
pub(super) const NO_SUCH_PEER: u32 = 7;
/// A lane that there is none.
pub(super) const NO_SUCH_LANE: u32 = 77;

/// A window that there is none.
pub(super) const NO_SUCH_WINDOW: u32 = 55;
/// An offset that no descriptor carries.
pub(super) const TOO_FAR: u64 = 1 << 41;

const PUT: u32 = 1;
const PUT_WITH_SIGNAL: u32 = 2;
const SIGNAL: u32 = 3;
const WAIT: u32 = 4;
const FLUSH: u32 = 5;
const COPY: u32 = 6;
const COPY_TO_PEER: u32 = 7;
const STORE_WORD: u32 = 8;
const WAIT_FOR_WORD: u32 = 9;
const WAIT_FOR_WORD_OR_GO_ON: u32 = 10;
const CHECK_FAILED: u32 = 11;

impl Setup<'_> {
    /// Lanes, windows and routes, and a handle for each rank.
    pub(super) fn use_handles(&mut self) {
        let bytes = self.window_bytes();
        let windows = [0, 1].map(|rank: usize| {
            let more =
                ["stage", "arrived", "words"].map(|name| self.ranks[rank].allocate(name, bytes));
            [self.inputs[rank], self.outputs[rank], more[0], more[1], more[2]]
        });
        let signals = self.add_user_ports();
        for rank in 0..2 {
            self.routes[rank] = self.user_routes(rank, &windows, &signals);
            self.handles[rank] = self.make_handle(rank, &windows);
        }
    }

    fn all_bytes(&self) -> u64 {
        u64::from(self.options.rounds()) * buffer_bytes(self.options)
    }

    /// Bytes of a window, which holds all data, or all words.
    fn window_bytes(&self) -> u64 {
        self.all_bytes().max(u64::from(self.options.blocks) * WORD_STRIDE)
    }

    /// Ports of each rank: those that send have the number of their lane, those that receive come
    /// behind. Gives the arrival and completion words of each rank's lanes.
    fn add_user_ports(&mut self) -> [Vec<[u64; 2]>; 2] {
        let lanes = self.options.blocks;
        let mut signals: [Vec<[u64; 2]>; 2] = Default::default();
        for (rank, words) in self.ranks.iter_mut().zip(&mut signals) {
            let peer = 1 - rank.number;
            for lane in 0..lanes {
                let name = |what: &str| format!("{what} of lane {lane}");
                let signal = rank.allocate(&name("credits"), 8);
                let completion = rank.allocate(&name("completions"), 8);
                words.push([rank.allocate(&name("arrivals"), 8), completion]);
                let port = Port { signal, completion, peer, ..Port::default() };
                rank.add_port(Port { route: lane, route_index: lane, ..port });
            }
            for [arrival, _] in words {
                rank.add_port(Port { signal: *arrival, peer, ..Port::default() });
            }
        }
        signals
    }

    /// By source window, destination window and lane.
    fn user_routes(
        &self,
        rank: usize,
        windows: &[[u64; WINDOWS as usize]; 2],
        signals: &[Vec<[u64; 2]>; 2],
    ) -> Vec<Route> {
        let mut routes = Vec::new();
        for source in windows[rank] {
            for destination in windows[1 - rank] {
                let lanes = signals[1 - rank].iter().zip(&signals[rank]).enumerate();
                routes.extend(lanes.map(|(lane, ([arrival, _], [_, completion]))| Route {
                    lane,
                    peer: 1 - rank,
                    source,
                    destination,
                    arrival: *arrival,
                    completion: *completion,
                    bytes: 0,
                }));
            }
        }
        routes
    }

    fn make_handle(&self, rank: usize, windows: &[[u64; WINDOWS as usize]; 2]) -> u64 {
        let lanes = self.options.blocks;
        let it = &self.ranks[rank];
        let put = |name: &str, bytes: &[u8]| {
            let address = it.allocate(name, bytes.len() as u64);
            it.set(address, bytes);
            address
        };
        let none = LanePorts { send: NO_PORT, receive: NO_PORT };
        let ports: Vec<LanePorts> = (0..2)
            .flat_map(|peer| (0..lanes).map(move |lane| (peer, lane)))
            .map(|(peer, lane)| match peer == rank {
                true => none,
                false => LanePorts { send: lane, receive: lanes + lane },
            })
            .collect();
        let entry = |address| WindowEntry { address, bytes: self.window_bytes() };
        let reached: Vec<u64> =
            windows[0].into_iter().zip(windows[1]).flat_map(|(a, b)| [a, b]).collect();
        let windows = windows[rank].map(entry);
        let routes: Vec<u32> = (0..WINDOWS * WINDOWS).map(|pair| pair * lanes).collect();
        let handle = DeviceHandle {
            communicator: it.address,
            ports: put("lanes", bytemuck::cast_slice(&ports)),
            windows: put("windows", bytemuck::cast_slice(&windows)),
            routes: put("routes", bytemuck::cast_slice(&routes)),
            lane_count: lanes,
            window_count: WINDOWS,
            reached: put("reached", bytemuck::cast_slice(&reached)),
        };
        put("handle", bytemuck::bytes_of(&handle))
    }

    /// The parameters of a launch of `test_calls`.
    pub(super) fn user_params(&self, rank: usize, launch: u32) -> Vec<u8> {
        let mut calls: Vec<Vec<Call>> =
            (0..self.options.blocks).map(|block| self.calls(rank, block, launch)).collect();
        let most = calls.iter().map(Vec::len).max().unwrap_or(0);
        calls.iter_mut().for_each(|calls| calls.resize(most, Call::default()));
        let calls = calls.concat();
        let bytes: &[u8] = bytemuck::cast_slice(&calls);
        let address = self.ranks[rank].allocate("calls", bytes.len() as u64);
        self.ranks[rank].set(address, bytes);
        let mut params = self.handles[rank].to_le_bytes().to_vec();
        params.extend_from_slice(&address.to_le_bytes());
        params.extend_from_slice(&(most as u32).to_le_bytes());
        params
    }

    fn calls(&self, rank: usize, block: u32, launch: u32) -> Vec<Call> {
        let mut calls = vec![Call { kind: CHECK_FAILED, ..Call::default() }];
        match (self.options.scenario, self.sends_by_words()) {
            (Scenario::Reuse, _) => self.call_from_one_place(rank, block, launch, &mut calls),
            (_, true) => self.call_by_words(rank, block, launch, &mut calls),
            (_, false) => self.call_by_lanes(rank, block, launch, &mut calls),
        }
        self.break_calls(rank, block, &mut calls);
        calls
    }

    /// Do kernels store into the peer's windows?
    pub(super) fn sends_by_words(&self) -> bool {
        if self.options.scenario == Scenario::Reuse {
            return false;
        }
        let is_bad = |fault: &Fault| matches!(fault, Fault::BadOp { .. } | Fault::BadPort { .. });
        self.options.seed % 3 == 1 && !self.options.faults.iter().any(is_bad)
    }

    /// How a word is awaited: now and then by a wait that leaves no record, where that ends in any
    /// case.
    fn wait_kind(&self, number: u32) -> u32 {
        let faults = &self.options.faults;
        let ends = !faults.iter().any(|fault| fault.disturbs())
            || self.options.timeout_ns != NEVER_NS
            || faults.iter().any(|fault| matches!(fault, Fault::Abort { .. }));
        if ends && number % 2 == 1 { WAIT_FOR_WORD_OR_GO_ON } else { WAIT_FOR_WORD }
    }

    /// A message from one window of a rank into another one.
    fn copy_of(&self, block: u32, launch: u32, message: u32, to: u32, from: u32) -> Call {
        let at = u64::from(launch) * buffer_bytes(self.options) + self.offset(block, message);
        let bytes = self.options.bytes.into();
        Call { kind: COPY, to, from, to_offset: at, from_offset: at, bytes, ..Call::default() }
    }

    fn call_by_lanes(&self, rank: usize, block: u32, launch: u32, calls: &mut Vec<Call>) {
        let messages = self.options.messages;
        let call = Call { peer: 1 - rank as u32, lane: block, ..Call::default() };
        let copy = |message, to, from| self.copy_of(block, launch, message, to, from);
        let send = |calls: &mut Vec<Call>, message: u32, from: u32| {
            calls.push(copy(message, STAGE, from));
            let Call { to_offset, from_offset, bytes, .. } = copy(message, ARRIVED, STAGE);
            let put = Call { to: ARRIVED, from: STAGE, to_offset, from_offset, bytes, ..call };
            // Some with their signal, some with one behind them; some are stored, and an engine
            // signals.
            match message % 3 {
                0 => calls.push(Call { kind: PUT_WITH_SIGNAL, ..put }),
                1 => calls.extend([Call { kind: PUT, ..put }, Call { kind: SIGNAL, ..call }]),
                _ => {
                    let stored = Call { kind: COPY_TO_PEER, peer: call.peer, ..put };
                    calls.extend([stored, Call { kind: SIGNAL, ..call }]);
                }
            }
        };
        let wait = Call { kind: WAIT, count: 1, ..call };
        for message in 0..messages {
            if rank == 1 {
                calls.push(wait);
            }
            send(calls, message, if rank == 0 { INPUT } else { ARRIVED });
        }
        if rank == 0 {
            calls.push(Call { count: messages, ..wait });
            calls.extend((0..messages).map(|message| copy(message, OUTPUT, ARRIVED)));
        }
        calls.push(Call { kind: FLUSH, ..call });
    }

    /// All messages of a block are put from one place, which is written again once it is flushed.
    fn call_from_one_place(&self, rank: usize, block: u32, launch: u32, calls: &mut Vec<Call>) {
        let messages = self.options.messages;
        let call = Call { peer: 1 - rank as u32, lane: block, ..Call::default() };
        let stage = self.copy_of(block, 0, 0, STAGE, STAGE).to_offset;
        let copy = |message, to, from| self.copy_of(block, launch, message, to, from);
        let wait = Call { kind: WAIT, count: 1, ..call };
        for message in 0..messages {
            if rank == 1 {
                calls.push(wait);
            }
            let from = if rank == 0 { INPUT } else { ARRIVED };
            calls.push(Call { to_offset: stage, ..copy(message, STAGE, from) });
            let Call { to_offset, bytes, .. } = copy(message, ARRIVED, STAGE);
            let put =
                Call { to: ARRIVED, from: STAGE, to_offset, from_offset: stage, bytes, ..call };
            calls.push(Call { kind: PUT_WITH_SIGNAL, ..put });
            calls.push(Call { kind: FLUSH, ..call });
        }
        if rank == 0 {
            calls.push(Call { count: messages, ..wait });
            calls.extend((0..messages).map(|message| copy(message, OUTPUT, ARRIVED)));
        }
    }

    fn call_by_words(&self, rank: usize, block: u32, launch: u32, calls: &mut Vec<Call>) {
        let messages = self.options.messages;
        let peer = 1 - rank as u32;
        let to_offset = u64::from(block) * WORD_STRIDE;
        let word = Call { peer, to: WORDS, to_offset, ..Call::default() };
        let copy = |message, to, from| self.copy_of(block, launch, message, to, from);
        for message in 0..messages {
            let count = launch * messages + message + 1;
            if rank == 1 {
                let kind = self.wait_kind(message);
                calls.push(Call { kind, count, ..word });
            }
            let from = if rank == 0 { INPUT } else { ARRIVED };
            calls.push(Call { kind: COPY_TO_PEER, peer, ..copy(message, ARRIVED, from) });
            calls.push(Call { kind: STORE_WORD, count, ..word });
        }
        if rank == 0 {
            let count = (launch + 1) * messages;
            let kind = self.wait_kind(launch);
            calls.push(Call { kind, count, ..word });
            calls.extend((0..messages).map(|message| copy(message, OUTPUT, ARRIVED)));
        }
    }

    /// What faults do to a block's calls: to those that open a lane.
    fn break_calls(&self, rank: usize, block: u32, calls: &mut [Call]) {
        let mut calls: Vec<_> =
            calls.iter_mut().filter(|call| (PUT..=FLUSH).contains(&call.kind)).collect();
        let count = calls.len();
        for fault in &self.options.faults {
            match *fault {
                Fault::BadOp { rank: it, block: of, op } if it as usize == rank && of == block => {
                    let call = &mut calls[op as usize % count];
                    match (call.kind, op % 4) {
                        (PUT | PUT_WITH_SIGNAL, 1) => call.to = NO_SUCH_WINDOW,
                        (PUT | PUT_WITH_SIGNAL, 2) => call.from = NO_SUCH_WINDOW,
                        (PUT | PUT_WITH_SIGNAL, 3) => call.to_offset = TOO_FAR,
                        _ => call.peer = NO_SUCH_PEER,
                    }
                }
                Fault::BadPort { rank: it, block: of } if it as usize == rank && of == block => {
                    calls[0].lane = NO_SUCH_LANE;
                }
                _ => {}
            }
        }
    }
}
