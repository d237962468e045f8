//! Calls of `ringdove.cuh` by users' kernels: rank 0 puts, rank 1 waits and puts it back, and rank
//! 0 has it again. Each block has a lane of its own, and one thread.

use ringdove_kernels::port::Port;
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};

use super::{Options, Setup, buffer_bytes};
use crate::engine::Route;
use crate::fault::Fault;

/// Input, output, and what rank 1 passes on.
const WINDOWS: u32 = 3;
const INPUT: u32 = 0;
const OUTPUT: u32 = 1;
const PASSED_ON: u32 = 2;

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

const PUT: u32 = 1;
const PUT_WITH_SIGNAL: u32 = 2;
const SIGNAL: u32 = 3;
const WAIT: u32 = 4;
const FLUSH: u32 = 5;

impl Setup<'_> {
    /// Lanes, windows and routes, and a handle for each rank.
    pub(super) fn use_handles(&mut self) {
        let passed_on = self.ranks[1].allocate("passed on", self.all_bytes());
        let windows = [0, 1].map(|rank: usize| {
            let other = if rank == 1 { passed_on } else { self.inputs[0] };
            [self.inputs[rank], self.outputs[rank], other]
        });
        let signals = self.add_user_ports();
        for rank in 0..2 {
            self.routes[rank] = self.user_routes(rank, &windows, &signals);
            self.handles[rank] = self.make_handle(rank, windows[rank]);
        }
    }

    fn all_bytes(&self) -> u64 {
        u64::from(self.options.rounds()) * buffer_bytes(self.options)
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
        windows: &[[u64; 3]; 2],
        signals: &[Vec<[u64; 2]>; 2],
    ) -> Vec<Route> {
        let mut routes = Vec::new();
        for source in windows[rank] {
            for destination in windows[1 - rank] {
                let lanes = signals[1 - rank].iter().zip(&signals[rank]).enumerate();
                routes.extend(lanes.map(|(lane, ([arrival, _], [_, completion]))| Route {
                    lane,
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

    fn make_handle(&self, rank: usize, windows: [u64; 3]) -> u64 {
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
        let windows = windows.map(|address| WindowEntry { address, bytes: self.all_bytes() });
        let routes: Vec<u32> = (0..WINDOWS * WINDOWS).map(|pair| pair * lanes).collect();
        let handle = DeviceHandle {
            communicator: it.address,
            ports: put("lanes", bytemuck::cast_slice(&ports)),
            windows: put("windows", bytemuck::cast_slice(&windows)),
            routes: put("routes", bytemuck::cast_slice(&routes)),
            lane_count: lanes,
            window_count: WINDOWS,
            reached: put("reached", &[0; 8 * 2 * WINDOWS as usize]),
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
        let Options { messages, bytes, .. } = *self.options;
        let base = u64::from(launch) * buffer_bytes(self.options);
        let call = Call { peer: 1 - rank as u32, lane: block, ..Call::default() };
        let mut calls = Vec::new();
        let puts = |to: u32, from: u32, message: u32| {
            let at = base + self.offset(block, message);
            let put =
                Call { to, from, to_offset: at, from_offset: at, bytes: bytes.into(), ..call };
            // Some with their signal, some with one behind them.
            match message % 2 {
                0 => vec![Call { kind: PUT_WITH_SIGNAL, ..put }],
                _ => vec![Call { kind: PUT, ..put }, Call { kind: SIGNAL, ..call }],
            }
        };
        let wait = Call { kind: WAIT, count: 1, ..call };
        if rank == 0 {
            for message in 0..messages {
                calls.extend(puts(PASSED_ON, INPUT, message));
            }
            calls.push(Call { count: messages, ..wait });
        } else {
            for message in 0..messages {
                calls.push(wait);
                calls.extend(puts(OUTPUT, PASSED_ON, message));
            }
        }
        calls.push(Call { kind: FLUSH, ..call });
        self.break_calls(rank, block, &mut calls);
        calls
    }

    /// What faults do to a block's calls.
    fn break_calls(&self, rank: usize, block: u32, calls: &mut [Call]) {
        let count = calls.len();
        for fault in &self.options.faults {
            match *fault {
                Fault::BadOp { rank: it, block: of, op } if it as usize == rank && of == block => {
                    calls[op as usize % count].peer = NO_SUCH_PEER;
                }
                Fault::BadPort { rank: it, block: of } if it as usize == rank && of == block => {
                    calls[0].lane = NO_SUCH_LANE;
                }
                _ => {}
            }
        }
    }
}
