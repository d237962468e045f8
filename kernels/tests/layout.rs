//! Keeps `kernels/cuda/layout_check.inc` in step with the layouts of this crate.
//!
//! The file holds the sizes, offsets and constants of the Rust side as `static_assert`s, and
//! `kernels/cuda/layout.cuh` includes it. If a layout changes here, this test fails until the file
//! is written anew (`kernels/generate`); then the device code fails to compile until it follows.

use ringdove_kernels::descriptor::{
    DESCRIPTOR_BYTES, Descriptor, LAP_BIT, LENGTH_BYTES_MAX, OFFSET_MAX, ROUTE_MAX,
};
use ringdove_kernels::element::{DataType, ReduceOp};
use ringdove_kernels::experts::{
    EXPERTS_F32_SCALES, EXPERTS_LOW_LATENCY, EXPERTS_NO_FAULT, EXPERTS_NO_SCALES, EXPERTS_QUANTISE,
    EXPERTS_SCALE_ELEMENTS, EXPERTS_THROUGHPUT, EXPERTS_TOO_MANY, EXPERTS_UE8M0_SCALES,
    EXPERTS_WEIGHTS, EXPERTS_WIDE_INDICES, EXPERTS_WORD_STRIDE, ExpertsCall, ExpertsFault,
    ExpertsFaultCode, ExpertsGroup, ExpertsHeader, ExpertsRouting, ExpertsRow, ExpertsState,
};
use ringdove_kernels::launch::{
    CallArguments, DeviceCommunicator, LAUNCH_CALLS_MAX, LaunchArguments, PlanFault, WaitKind,
    WaitRecord, place,
};
use ringdove_kernels::mark::MarkCall;
use ringdove_kernels::op::{
    BLOCK_PORTS_MAX, BUFFERS_MAX, BlockProgram, MESSAGES_MAX, Op, OpCode, Operand, PLAN_MAGIC,
    PlanHeader, Segment, Space, THREADS_MAX, WHOLE_SLOT_PERIOD, flags,
};
use ringdove_kernels::optimizer::{
    OPTIMIZER_ADAM, OPTIMIZER_GRADIENTS, OPTIMIZER_MOMENTUM, OPTIMIZER_SGD, OptimizerCall,
};
use ringdove_kernels::port::Port;
use ringdove_kernels::program::{
    BATCH_NUMBER_SHIFT, BATCH_OPERANDS_SHIFT, BATCHES, EXPRESSION_DEPTH, ITERATIONS_AT_ONCE,
    Instruction, MAILBOX_ITERATIONS, MATRIX_TENSOR_CORES, Mailbox, NO_COUNTER, PARAMETERS,
    PROGRAM_MAGIC, ProgramArguments, ProgramBlock, ProgramHeader, ProgramMode, ProgramStamp,
    ProgramState, ProgramTask, ProgramWait, RESULTS, STATE_ITERATIONS, TASK_ELEMENT_BITS,
    TASK_OPERANDS, TaskElement, TaskKind, TaskOperand,
};
use ringdove_kernels::user::{DeviceHandle, LanePorts, NO_PORT, WindowEntry};
use ringdove_kernels::window::{WINDOW_MOVE, WINDOW_SIGNAL, WINDOW_WAIT, WindowCall};
use ringdove_kernels::words::{WORDS_BYTES_PER_THREAD, WordsCall};
use std::fmt::Write;
use std::mem::offset_of;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/layout_check.inc");

macro_rules! layout {
    ($text:expr, $type:ident, $($field:ident),+) => {
        writeln!($text, "\nstatic_assert(sizeof({}) == {}, \"size\");", stringify!($type),
            size_of::<$type>()).unwrap();
        $(writeln!($text, "static_assert(__builtin_offsetof({}, {}) == {}, \"offset\");",
            stringify!($type), stringify!($field), offset_of!($type, $field)).unwrap();)+
    };
}

macro_rules! codes {
    ($text:expr, $type:ident, $($variant:ident),+) => {
        writeln!($text).unwrap();
        $(writeln!($text, "static_assert(u32({}::{}) == {}, \"code\");", stringify!($type),
            stringify!($variant), $type::$variant as u32).unwrap();)+
    };
}

macro_rules! values {
    ($text:expr, $($name:expr, $value:expr);+ $(;)?) => {
        writeln!($text).unwrap();
        $(writeln!($text, "static_assert({} == {:#x}ull, \"value\");", $name, $value).unwrap();)+
    };
}

/// The single descriptor bits, taken from what the encoder does rather than from its constants.
fn bit(route: u32, length: u32, arrival: bool, completion: bool) -> u64 {
    let source_offset = 0;
    let destination_offset = 0;
    Descriptor { route, source_offset, destination_offset, length, arrival, completion }
        .encode(false)[1]
}

fn expected() -> String {
    let mut text = String::from(
        "// Written by kernels/tests/layout.rs: what the Rust side holds to be true. \
         Do not edit.\n",
    );
    let text = &mut text;
    values!(text,
        "DESCRIPTOR_BYTES", DESCRIPTOR_BYTES;
        "OFFSET_MAX", OFFSET_MAX;
        "LENGTH_BYTES_MAX", LENGTH_BYTES_MAX;
        "ROUTE_MAX", ROUTE_MAX;
        "LAP_BIT", LAP_BIT;
        "(1ull << ROUTE_SHIFT)", bit(1, 1, false, false);
        "NO_DATA_BIT", bit(0, 0, false, false);
        "ARRIVAL_BIT", bit(0, 1, true, false);
        "COMPLETION_BIT", bit(0, 1, false, true);
        "PLAN_MAGIC", PLAN_MAGIC;
        "BLOCK_PORTS_MAX", BLOCK_PORTS_MAX;
        "THREADS_MAX", THREADS_MAX;
        "BUFFERS_MAX", BUFFERS_MAX;
        "MESSAGES_MAX", MESSAGES_MAX;
        "LAUNCH_CALLS_MAX", LAUNCH_CALLS_MAX;
        "WHOLE_SLOT_PERIOD", WHOLE_SLOT_PERIOD;
        "(1ull << place::OFFSET_BITS)", place::of_source(1, 0);
        "(1ull << place::GENERATION_SHIFT)", place::of_grant(0, 1, 0);
        "place::SOURCES_MAX", place::SOURCES_MAX;
        "place::GRANTS_MAX", place::GRANTS_MAX;
        "(1ull << place::ENTRY_GENERATION_SHIFT)", place::entry(0, 1);
        "DATA_TYPE_COUNT", DataType::ALL.len();
        "REDUCE_OP_COUNT", ReduceOp::ALL.len();
        "flags::ARRIVAL", flags::ARRIVAL;
        "flags::COMPLETION", flags::COMPLETION;
        "flags::SCALE", flags::SCALE;
        "flags::FINISH", flags::FINISH;
        "flags::LOW_LATENCY", flags::LOW_LATENCY;
        "NO_PORT", NO_PORT;
    );
    let two_bytes = Descriptor {
        route: 0,
        source_offset: 0,
        destination_offset: 0,
        length: 2,
        arrival: false,
        completion: false,
    };
    values!(text, "(1ull << LENGTH_SHIFT)", two_bytes.encode(false)[0]);
    codes!(text, DataType, I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8E4M3, F8E5M2);
    codes!(text, ReduceOp, Sum, Prod, Max, Min, Avg, PreMulSum);
    codes!(
        text,
        OpCode,
        Copy,
        Reduce,
        Put,
        Credit,
        WaitSignal,
        WaitCompletion,
        Advance,
        Pack,
        Collect,
        Grant
    );
    codes!(text, Space, None, Buffer, Slot, Address, Granted, Peer);
    codes!(
        text, WaitKind, Arrival, Credit, Completion, RingSpace, BadPlan, StrayClaim, BadCall,
        Counter
    );
    codes!(
        text,
        PlanFault,
        Magic,
        BlockCount,
        ThreadCount,
        Range,
        PortCount,
        PortNumber,
        OpCode,
        OpPort,
        Space,
        BufferNumber,
        SlotRange,
        PutLength,
        DescriptorOffset,
        Route,
        Alignment,
        DataType,
        ReduceOp,
        NoSignal,
        SlotPort,
        MessageCount,
        MessageNumber,
        Peer,
        Lane,
        CallCount,
        Place
    );
    layout!(text, PlanHeader, magic, size_bytes, block_count, thread_count);
    layout!(text, BlockProgram, segments, segment_count, ports, port_count);
    layout!(text, Segment, ops, op_count, rounds, round_stride, limit);
    layout!(text, Operand, offset, number, port, space);
    layout!(text, Op, code, flags, port, length, extent, value, before, destination, a, b);
    layout!(
        text,
        Port,
        signal,
        position,
        completion,
        completion_position,
        slots,
        slot_bytes,
        slot_mask,
        route,
        route_index,
        peer,
        in_host,
        peer_slots,
        peer_signal
    );
    layout!(
        text,
        DeviceCommunicator,
        ring_slots,
        ring_head,
        ring_tail,
        ring_tail_cache,
        ring_log2,
        rank,
        rank_count,
        port_count,
        ports,
        abort,
        record_claim,
        record,
        timeout_ns,
        staging,
        host_staging,
        shared_staging,
        blocks_ended,
        launches_ended,
        sources
    );
    layout!(
        text,
        CallArguments,
        plan,
        buffers,
        region_offsets,
        route_bases,
        scalar,
        data_type,
        reduce_op,
        addresses,
        address_count,
        source
    );
    layout!(text, LaunchArguments, communicator, sequence, call_count, reserved, calls);
    layout!(
        text,
        DeviceHandle,
        communicator,
        ports,
        windows,
        routes,
        lane_count,
        window_count,
        reached
    );
    values!(text,
        "EXPERTS_LOW_LATENCY", EXPERTS_LOW_LATENCY;
        "EXPERTS_THROUGHPUT", EXPERTS_THROUGHPUT;
        "EXPERTS_WORD_STRIDE", EXPERTS_WORD_STRIDE;
        "EXPERTS_WIDE_INDICES", EXPERTS_WIDE_INDICES;
        "EXPERTS_TOO_MANY", EXPERTS_TOO_MANY;
        "EXPERTS_WEIGHTS", EXPERTS_WEIGHTS;
        "EXPERTS_QUANTISE", EXPERTS_QUANTISE;
        "EXPERTS_NO_SCALES", EXPERTS_NO_SCALES;
        "EXPERTS_F32_SCALES", EXPERTS_F32_SCALES;
        "EXPERTS_UE8M0_SCALES", EXPERTS_UE8M0_SCALES;
        "EXPERTS_SCALE_ELEMENTS", EXPERTS_SCALE_ELEMENTS;
        "EXPERTS_NO_FAULT", EXPERTS_NO_FAULT;
    );
    codes!(text, ExpertsFaultCode, Index, Repeated, Weight, Tokens, Message, Gone);
    layout!(
        text,
        ExpertsGroup,
        handle,
        state,
        arrivals,
        received,
        message_bytes,
        returned,
        returned_bytes,
        outgoing,
        returning,
        relayed,
        relayed_bytes,
        gathered,
        gathered_bytes,
        owners,
        first_experts,
        gone,
        grace_ns,
        histogram,
        experts,
        local_experts,
        top_k,
        tokens_max,
        rows_max,
        home_rows_max,
        header_bytes,
        data_bytes,
        scale_bytes,
        row_bytes,
        return_data_bytes,
        return_row_bytes,
        mode,
        data_type,
        lane,
        alignment,
        scales,
        hidden,
        node_ranks,
        relayed_header_bytes,
        relayed_row_bytes,
        goes_on,
        return_rows_max,
        choices_bytes
    );
    layout!(text, ExpertsFault, step, place, value, code, rank);
    layout!(
        text,
        ExpertsState,
        sent,
        received,
        returns_sent,
        returns_received,
        blocks_done,
        blocks_done_far,
        first_fault,
        gone_count,
        fault
    );
    layout!(text, ExpertsHeader, step, rows, home_base, fault);
    layout!(text, ExpertsRow, token, choice, weight, reserved);
    layout!(
        text,
        ExpertsRouting,
        indices,
        weights,
        places,
        homes,
        counts,
        bases,
        rows,
        home_bases,
        message_bases,
        fault,
        in_rows,
        in_returns,
        in_homes,
        in_bases,
        in_starts,
        in_places,
        message_places,
        relay_rows,
        relay_homes,
        relay_choices,
        missing
    );
    layout!(
        text,
        ExpertsCall,
        group,
        routing,
        input,
        scales,
        indices,
        weights,
        output,
        output_scales,
        output_counts,
        output_indices,
        output_weights,
        output_sources,
        output_missing,
        tokens,
        flags
    );
    layout!(text, LanePorts, send, receive);
    layout!(text, WindowEntry, address, bytes);
    layout!(text, WordsCall, words, stop, tally, timeout_ns);
    layout!(text, MarkCall, mark, gate, timeout_ns);
    values! { text,
        "WORDS_BYTES_PER_THREAD", WORDS_BYTES_PER_THREAD;
        "OPTIMIZER_GRADIENTS", OPTIMIZER_GRADIENTS;
        "OPTIMIZER_SGD", OPTIMIZER_SGD;
        "OPTIMIZER_MOMENTUM", OPTIMIZER_MOMENTUM;
        "OPTIMIZER_ADAM", OPTIMIZER_ADAM;
        "WINDOW_MOVE", WINDOW_MOVE;
        "WINDOW_SIGNAL", WINDOW_SIGNAL;
        "WINDOW_WAIT", WINDOW_WAIT;
    }
    layout!(
        text,
        OptimizerCall,
        from,
        to,
        state_bytes,
        count,
        gradients,
        corrections,
        kind,
        gradient_count,
        rate,
        first,
        second,
        epsilon
    );
    layout!(
        text,
        WindowCall,
        communicator,
        sequence,
        source,
        destination,
        bytes,
        kind,
        value,
        port,
        signal
    );
    layout!(
        text, WaitRecord, state, kind, block, segment, op, round, port, peer, expected, seen,
        position, sequence, waited_ns, call
    );
    program(text);
    std::mem::take(text)
}

/// Resident programs.
fn program(text: &mut String) {
    values! { text,
        "PROGRAM_MAGIC", PROGRAM_MAGIC;
        "NO_COUNTER", NO_COUNTER;
        "TASK_OPERANDS", TASK_OPERANDS;
        "EXPRESSION_DEPTH", EXPRESSION_DEPTH;
        "PARAMETERS", PARAMETERS;
        "BATCHES", BATCHES;
        "BATCH_OPERANDS_SHIFT", BATCH_OPERANDS_SHIFT;
        "BATCH_NUMBER_SHIFT", BATCH_NUMBER_SHIFT;
        "MAILBOX_ITERATIONS", MAILBOX_ITERATIONS;
        "RESULTS", RESULTS;
        "ITERATIONS_AT_ONCE", ITERATIONS_AT_ONCE;
        "STATE_ITERATIONS", STATE_ITERATIONS;
        "TASK_ELEMENT_BITS", TASK_ELEMENT_BITS;
        "MATRIX_TENSOR_CORES", MATRIX_TENSOR_CORES;
    }
    codes!(
        text,
        TaskKind,
        Matrix,
        Elementwise,
        Reduce,
        Softmax,
        SoftmaxBackward,
        CrossEntropy,
        Norm,
        NormBackward,
        Gather,
        ScatterAdd,
        Attention,
        Report,
        Collective,
        User,
        Keep,
        Put,
        Signal,
        Wait
    );
    codes!(
        text,
        Instruction,
        Load,
        Store,
        Constant,
        Parameter,
        Duplicate,
        Add,
        Subtract,
        Multiply,
        Divide,
        Maximum,
        Minimum,
        Greater,
        Negate,
        Absolute,
        SquareRoot,
        Exponential,
        Logarithm,
        Drop,
        LoadF16,
        LoadBF16,
        StoreF16,
        StoreBF16
    );
    codes!(text, TaskElement, Word, F16, BF16);
    codes!(text, ProgramMode, Resident, Begin, Tasks, End);
    layout!(text, TaskOperand, address, row_bytes, column_bytes);
    layout!(
        text,
        ProgramTask,
        kind,
        raises,
        waits,
        wait_count,
        rows,
        columns,
        inner,
        option,
        operands,
        expression,
        expression_length,
        value,
        elements
    );
    layout!(text, ProgramWait, counter, raises, count, lag);
    layout!(text, ProgramBlock, first, count);
    layout!(
        text,
        ProgramHeader,
        magic,
        block_count,
        service_blocks,
        task_count,
        result_count,
        blocks,
        steps,
        tasks,
        waits,
        instructions,
        calls,
        counters,
        state,
        mailbox,
        stamps,
        stamp_capacity,
        batch_count,
        handle,
        words
    );
    layout!(text, ProgramStamp, task, reserved, iteration, came_ns, began_ns, ended_ns);
    layout!(text, ProgramState, released, stop_at, ended, parameters, batches);
    layout!(text, Mailbox, granted, stop, done, reserved, parameters, results, batches);
    layout!(
        text,
        ProgramArguments,
        program,
        communicator,
        iteration,
        stops,
        sequence,
        mode,
        first_task
    );
}

/// If this fails, device code and hosts disagree about memory that they share.
#[test]
fn device_layout_follows_rust() {
    let expected = expected();
    if std::env::var_os("RINGDOVE_WRITE_LAYOUT").is_some() {
        std::fs::write(PATH, &expected).unwrap();
    }
    let found = std::fs::read_to_string(PATH).unwrap();
    assert!(
        found == expected,
        "{PATH} is not what the layouts say; run kernels/generate and follow the compiler"
    );
}
