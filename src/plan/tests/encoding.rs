//! Encoding: the bytes say what the typed plan says.

use super::*;
use ringdove_kernels::op::{self as wire, ADDRESS_NUMBER_SHIFT, OpCode, PLAN_MAGIC, Space, flags};

/// Reads records back, with no help from the encoder.
struct Decoder<'a>(&'a [u8]);

impl Decoder<'_> {
    fn at<T: bytemuck::Pod>(&self, offset: u32, number: u32) -> T {
        let start = offset as usize + number as usize * size_of::<T>();
        bytemuck::pod_read_unaligned(&self.0[start..start + size_of::<T>()])
    }

    fn place(operand: &wire::Operand) -> Operand {
        match operand.space {
            space if space == Space::Buffer as u8 => {
                let buffer = [Buffer::Input, Buffer::Output][operand.number as usize];
                Operand::Buffer { buffer, offset: operand.offset }
            }
            space if space == Space::Slot as u8 => Operand::Slot {
                port: operand.port,
                message: operand.number,
                offset: operand.offset,
            },
            space if space == Space::Granted as u8 => Operand::Granted {
                port: operand.port,
                message: operand.number,
                offset: operand.offset,
            },
            space if space == Space::Peer as u8 => {
                // The table has the inputs of three ranks, then their outputs.
                let buffer = [Buffer::Input, Buffer::Output][(operand.number as usize - 1) / 3];
                Operand::Peer { port: operand.port, buffer, offset: operand.offset }
            }
            space => {
                assert_eq!(space, Space::Address as u8);
                Operand::Address(u64::from(operand.number) << ADDRESS_NUMBER_SHIFT | operand.offset)
            }
        }
    }

    fn optional(operand: &wire::Operand) -> Option<Operand> {
        (*operand != wire::Operand::default()).then(|| Self::place(operand))
    }

    fn op(op: &wire::Op) -> Op {
        let range = Range { extent: op.extent, length: op.length };
        let flag = |flag| op.flags & flag != 0;
        let modifiers = Modifiers { scale: flag(flags::SCALE), finish: flag(flags::FINISH) };
        let (port, value) = (op.port, op.value);
        match OpCode::from_code(op.code).expect("a known code") {
            OpCode::Copy => Op::Copy {
                destination: Self::place(&op.destination),
                source: Self::place(&op.a),
                range,
                modifiers,
            },
            OpCode::Reduce => Op::Reduce {
                destination: Self::place(&op.destination),
                a: Self::place(&op.a),
                b: Self::place(&op.b),
                range,
                modifiers,
            },
            OpCode::Pack => Op::Pack {
                port,
                message: op.destination.number,
                source: Self::optional(&op.a),
                range,
            },
            OpCode::Collect => Op::Collect {
                destination: Self::optional(&op.destination),
                own: Self::optional(&op.a),
                before: op.before as u16,
                first: port,
                count: value as u16,
                message: op.b.number,
                range,
                finish: modifiers.finish,
            },
            OpCode::Put => Op::Put {
                port,
                destination: Self::place(&op.destination),
                source: Self::place(&op.a),
                range,
                arrival: flag(flags::ARRIVAL),
                completion: flag(flags::COMPLETION),
            },
            OpCode::Credit => Op::Credit { port, messages: value as u16 },
            OpCode::Grant => Op::Grant {
                port,
                place: Self::optional(&op.a).map(|place| match place {
                    Operand::Address(address) => address,
                    other => panic!("{other:?} is granted"),
                }),
            },
            OpCode::WaitSignal => Op::WaitSignal { port, value },
            OpCode::WaitCompletion => Op::WaitCompletion { port, value },
            OpCode::Advance => {
                let completions = op.destination.offset as u32;
                Op::Advance { port, signals: value as u32, completions }
            }
        }
    }

    fn program(&self, table: &[LaneEnd]) -> RankProgram {
        let header: wire::PlanHeader = self.at(0, 0);
        assert_eq!(header.magic, PLAN_MAGIC);
        assert_eq!(header.size_bytes as usize, self.0.len());
        let block = |number| {
            let block: wire::BlockProgram = self.at(size_of::<wire::PlanHeader>() as u32, number);
            let segment = |number| {
                let segment: wire::Segment = self.at(block.segments, number);
                let ops = (0..segment.op_count).map(|op| Self::op(&self.at(segment.ops, op)));
                Segment {
                    rounds: segment.rounds,
                    round_stride: segment.round_stride,
                    limit: segment.limit,
                    ops: ops.collect(),
                }
            };
            assert!(block.segments.is_multiple_of(16) && block.ports.is_multiple_of(16));
            let port = |number| table[self.at::<u32>(block.ports, number) as usize];
            BlockProgram {
                ports: (0..block.port_count).map(port).collect(),
                segments: (0..block.segment_count).map(segment).collect(),
            }
        };
        RankProgram { blocks: (0..header.block_count).map(block).collect() }
    }
}

fn plans() -> Vec<Verified> {
    let limits = limits(3, 64, 4);
    let mut plans = Vec::new();
    for (in_place, registered) in [(false, false), (false, true), (true, true)] {
        let (reduce_op, request) = (ReduceOp::PreMulSum, request(3, 1 << 17));
        let request = CollectiveRequest { reduce_op, in_place, registered, ..request };
        let choice = select(&request, &limits).expect("valid");
        plans.push(verify(build(&choice), &request.promise()).expect("correct"));
    }
    let (plan, promise) = all_pairs(64);
    plans.push(verify(plan, &promise).expect("correct"));
    let (request, choice) = super::symmetric::symmetric(3, 613, false, ReduceOp::Sum);
    plans.push(verify(build(&choice), &request.promise()).expect("correct"));
    let transfer = |peer, direction, address| PointToPoint {
        peer,
        direction,
        address,
        bytes: 100,
        registered: false,
    };
    let list = [
        transfer(1, Direction::Send, 0),
        transfer(1, Direction::Receive, 256),
        transfer(0, Direction::Send, 512),
        transfer(0, Direction::Receive, 1024),
        transfer(2, Direction::Send, 0),
    ];
    let registered = list.map(|transfer| PointToPoint {
        registered: true,
        bytes: 400,
        address: 4 * transfer.address,
        ..transfer
    });
    for (list, granted_bytes) in [(list, None), (registered, None), (registered, Some(1))] {
        let limits = Limits { granted_bytes, ..limits };
        let group = group(0, 3, &list, &limits);
        let group = group.expect("valid");
        plans.push(verify(group.plan, &group.promise).expect("correct"));
    }
    plans
}

/// All ops with the port that each names.
fn ops(block: &BlockProgram) -> impl Iterator<Item = (Op, Option<LaneEnd>)> {
    let ops = block.segments.iter().flat_map(|segment| &segment.ops);
    ops.map(|op| (*op, op.port().map(|port| block.ports[usize::from(port)])))
}

/// The ops stand last, one block's after the other's.
fn ops_of(bytes: &[u8]) -> Vec<wire::Op> {
    let decoder = Decoder(bytes);
    let header: wire::PlanHeader = decoder.at(0, 0);
    let blocks = (0..header.block_count).map(|number| {
        decoder.at::<wire::BlockProgram>(size_of::<wire::PlanHeader>() as u32, number)
    });
    let segments = blocks
        .flat_map(|block| (0..block.segment_count).map(move |number| (block.segments, number)));
    let segments = segments.map(|(at, number)| decoder.at::<wire::Segment>(at, number));
    segments
        .flat_map(|segment| (0..segment.op_count).map(move |number| (segment.ops, number)))
        .map(|(at, number)| decoder.at(at, number))
        .collect()
}

#[test]
fn what_is_decoded_is_what_was_encoded() {
    for verified in plans() {
        for rank in 0..3 {
            let mut table: Vec<LaneEnd> = verified.ports(rank).map(|(_, end)| end).collect();
            table.reverse();
            let find = |end: LaneEnd| table.iter().position(|it| *it == end).map(|it| it as u32);
            let bytes = verified.encode(rank, &find).expect("every port is known");
            let program = &verified.plan().ranks[rank as usize];
            assert_eq!(Decoder(&bytes).program(&table), *program);
            for (op, typed) in ops_of(&bytes).iter().zip(program.blocks.iter().flat_map(ops)) {
                let lane = typed.1.map(|end| end.lane.kind);
                let low_latency =
                    lane == Some(LaneKind::LowLatency) && matches!(typed.0, Op::Put { .. });
                assert_eq!(op.flags & flags::LOW_LATENCY != 0, low_latency, "{:?}", typed.0);
            }
            let bound = crate::plan::encode::encoded_bytes(program);
            assert_eq!(bytes.len() as u64, bound);
        }
    }
}

#[test]
fn a_port_that_nobody_connected_is_named() {
    let verified = &plans()[0];
    let error = verified.encode(1, &|_| None).expect_err("no ports");
    assert!(error.to_string().contains("no send port of lane 1->2 slots 0"), "{error}");
    assert_eq!(
        verified.encode(3, &|_| Some(0)),
        Err(EncodeError::NoSuchRank { rank: 3, rank_count: 3 })
    );
}
