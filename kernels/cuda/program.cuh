// Resident programs: the executor grown by tasks that compute (program.rs describes the image).
//
// A block runs its steps, in their order, iteration after iteration. Thread 0 waits for the
// counters of a task, all threads run it, thread 0 raises its counter. Counters are never reset: a
// target grows with the iteration. The first blocks run collectives: each of their steps is a plan,
// which the executor's own code runs, over whatever lanes it has.
//
// Block 0 begins iterations. It looks at the mailbox in host memory, copies the iteration's
// parameters to device memory, and releases the iteration to all blocks. No iteration begins before
// all blocks have ended the one two before, so parameters, results and the host's words of four
// iterations suffice. The block that ends an iteration last tells the host.
//
// Waits for tasks have the communicator's deadline (R10). Only the wait for the host's next
// iteration has none: it ends with the abort word and with any failure, like all others.
#pragma once

#include "executor.cuh"
#include "task.cuh"
#include "task_attention.cuh"
#include "task_matrix.cuh"
#include "task_message.cuh"
#include "task_rows.cuh"
#include "task_tensor.cuh"

// Calls the user's function with this number; 0: there is none. Programs with such functions bring
// another definition (`src/program/function.rs`), before which this one gives way when they are
// linked.
extern "C" __device__ ringdove::u32 ringdove_user_task(ringdove::u32 function,
                                                       const ringdove::ProgramTask* task,
                                                       ringdove::u64 iteration,
                                                       const float* parameters);

namespace ringdove {

// What a block of a program keeps in shared memory beside `BlockState`.
struct ProgramShared {
    ProgramHeader header;
    ProgramBlock block;
    ProgramTask task;
    // Thread 0 says: no more iterations.
    u32 is_over;
    // Of an ordinary launch: the iteration that it belongs to.
    u64 iteration;
    // Where the stamp of the present step goes; 0: nowhere.
    u64 stamp;
    float shares[THREADS_MAX];
    alignas(32) float fragments[FRAGMENT_WARPS * FRAGMENT_VALUES];
};

// A look at the mailbox: is the iteration granted, or shall the launch end?
struct MailboxPoll {
    u64 mailbox;
    u64 iteration;
    bool is_granted = false;

    RINGDOVE_INLINE bool operator()() {
        const u64 granted =
            ptx::load_relaxed_system_u64(mailbox + __builtin_offsetof(Mailbox, granted));
        is_granted = granted > iteration;
        return is_granted ||
               ptx::load_relaxed_system_u64(mailbox + __builtin_offsetof(Mailbox, stop)) != 0;
    }
};

class ProgramBlockRunner : Executor {
public:
    RINGDOVE_INLINE ProgramBlockRunner(BlockState& block_state, ProgramShared& shared)
        : Executor(block_state), own(shared) {}

    RINGDOVE_INLINE void run(const ProgramArguments& arguments) {
        if (is_leader) {
            load_image(arguments);
        }
        if (!any_failed()) {
            run_mode(arguments);
        }
        if (failed == REFUSED) {
            record_refusal();
        }
    }

private:
    ProgramShared& own;

    RINGDOVE_INLINE void run_mode(const ProgramArguments& arguments) {
        switch (ProgramMode(arguments.mode)) {
            case ProgramMode::Begin:
                if (is_leader) {
                    copy_parameters(own.iteration);
                }
                return;
            case ProgramMode::End:
                if (is_leader) {
                    ptx::store<u64>(own.header.state +
                                        __builtin_offsetof(ProgramState, released),
                                    own.iteration + 1);
                    tell_host(own.iteration);
                }
                return;
            default:
                run_iterations(arguments);
        }
    }

    // All iterations that the host grants; or, as an ordinary launch, one task of one iteration,
    // without waits: what it needs are launches before this one. One piece of code for both.
    RINGDOVE_INLINE void run_iterations(const ProgramArguments& arguments) {
        const bool is_resident = ProgramMode(arguments.mode) == ProgramMode::Resident;
#pragma unroll 1
        for (u64 iteration = is_resident ? arguments.iteration : own.iteration;; ++iteration) {
            if (is_leader && is_resident) {
                own.is_over = begin_iteration(iteration, iteration + arguments.stops) ? 0 : 1;
            }
            if (any_failed() || own.is_over != 0) {
                return;
            }
#pragma unroll 1
            for (u32 step = 0; step < own.block.count; ++step) {
                const u32 number =
                    is_resident ? step_number(step) : arguments.first_task + ptx::block_index();
                if (is_leader) {
                    own.stamp = is_resident ? stamp_address(step, iteration) : 0;
                }
                if (!run_step(number, iteration, is_resident)) {
                    return;
                }
            }
            if (!is_resident) {
                return;
            }
            // All threads have ended the last task, whose barrier thread 0 has passed.
            if (is_leader) {
                end_iteration(iteration);
            }
        }
    }

    RINGDOVE_INLINE u32 step_number(u32 step) const {
        const u64 place = own.block.first + step;
        return ptx::load<u32>(own.header.steps + place * sizeof(u32));
    }

    RINGDOVE_INLINE bool run_step(u32 number, u64 iteration, bool is_resident) {
        load_task(number);
        // The record was stored by several threads, and thread 0 needs it to wait.
        ptx::converge_warp();
        if (is_leader && is_resident) {
            stamp(__builtin_offsetof(ProgramStamp, came_ns));
            wait_for_counters(number, iteration);
            stamp(__builtin_offsetof(ProgramStamp, began_ns));
        }
        if (is_leader) {
            place_batches(iteration);
        }
        if (any_failed()) {
            return false;
        }
        run_task(number, iteration);
        if (any_failed()) {
            return false;
        }
        if (is_leader && is_resident && own.task.raises != NO_COUNTER) {
            // With the barrier before it, a release of what the block has written: pairs with
            // `wait_or_record` of whoever waits for the counter.
            ptx::fence_acquire_release_system();
            ptx::fetch_add_relaxed_gpu_u64(counter(own.task.raises), 1);
        }
        if (is_leader) {
            end_stamp(number, iteration);
        }
        // The record is the next task's from here on.
        ptx::converge_warp();
        return true;
    }

    // All threads: the first warp copies the record to shared memory.
    RINGDOVE_INLINE void load_task(u32 number) {
        constexpr u32 WORDS = sizeof(ProgramTask) / sizeof(u64);
        static_assert(WORDS <= LANES, "one word for each lane");
        const u32 thread = ptx::thread_index();
        if (thread < WORDS) {
            const u64 record = own.header.tasks + static_cast<u64>(number) * sizeof(ProgramTask);
            const u64 word = ptx::load<u64>(record + thread * sizeof(u64));
            __builtin_memcpy(reinterpret_cast<u64*>(&own.task) + thread, &word, sizeof(word));
        }
    }

    // All threads.
    RINGDOVE_INLINE void run_task(u32 number, u64 iteration) {
        const u64 program_state = own.header.state;
        const u32 place = u32(iteration) % STATE_ITERATIONS;
        const TaskContext context = {
            own.task, own.header.instructions,
            program_state + __builtin_offsetof(ProgramState, parameters) +
                place * PARAMETERS * sizeof(float),
            own.header.mailbox + __builtin_offsetof(Mailbox, results) +
                u32(iteration) % MAILBOX_ITERATIONS * (RESULTS * sizeof(float))};
        switch (TaskKind(own.task.kind)) {
            case TaskKind::Matrix:
                return suits_tensor_cores(own.task)
                           ? run_matrix_on_tensor_cores(context, own.fragments)
                           : run_matrix(context);
            case TaskKind::Elementwise:
                return run_elementwise(context);
            case TaskKind::Reduce:
                return run_reduce(context);
            case TaskKind::Softmax:
                return run_softmax(context);
            case TaskKind::SoftmaxBackward:
                return run_softmax_backward(context);
            case TaskKind::CrossEntropy:
                return run_cross_entropy(context);
            case TaskKind::Norm:
                return run_norm(context);
            case TaskKind::NormBackward:
                return run_norm_backward(context);
            case TaskKind::Gather:
                return run_gather(context);
            case TaskKind::ScatterAdd:
                return run_scatter_add(context);
            case TaskKind::Attention:
                return run_attention(context, own.shares);
            case TaskKind::Report:
                return run_report(context);
            case TaskKind::Collective:
                return run_collective();
            case TaskKind::Keep:
                return run_keep(context, iteration);
            case TaskKind::User:
                return run_user(context, iteration);
            case TaskKind::Put:
            case TaskKind::Signal:
            case TaskKind::Wait:
                return run_message(number, iteration);
            default:
                refuse(PlanFault::OpCode, u64(TaskKind::Collective), own.task.kind);
        }
    }

    // All threads: this block's part of a plan, as in a launch of the executor.
    RINGDOVE_INLINE void run_collective() {
        const u32 call = own.task.option;
        const u64 address = own.header.calls + static_cast<u64>(call) * sizeof(CallArguments);
        if (load_program(*reinterpret_cast<const CallArguments*>(address), call) &&
            load_ports()) {
            run_program();
        }
    }

    // All threads: what has to do with other ranks.
    RINGDOVE_INLINE void run_message(u32 number, u64 iteration) {
        const TaskKind kind = TaskKind(own.task.kind);
        Message message(own.header, own.task, iteration, state.sequence);
        bool is_fine = true;
        if (kind == TaskKind::Put) {
            is_fine = message.put();
        } else if (is_leader) {
            is_fine = kind == TaskKind::Signal
                          ? message.signal()
                          : message.wait(state.communicator,
                                         counter_site(number, NO_COUNTER, iteration));
        }
        failed = is_fine ? failed : STOPPED;
    }

    // All threads: what the user's function does.
    RINGDOVE_INLINE void run_user(const TaskContext& context, u64 iteration) {
        const u32 function = own.task.expression;
        if (ringdove_user_task(function, &own.task, iteration,
                               reinterpret_cast<const float*>(context.parameters)) == 0) {
            refuse(PlanFault::OpCode, u64(TaskKind::User), function);
        }
        // The function may have divided warps.
        ptx::converge_warp();
    }

    // From here on, thread 0 alone.

    RINGDOVE_INLINE u64 stamp_address(u32 step, u64 iteration) const {
        const u32 capacity = own.header.stamp_capacity;
        if (capacity == 0) {
            return 0;
        }
        const u64 place = (iteration * own.block.count + step) % capacity;
        return own.header.stamps +
               (static_cast<u64>(ptx::block_index()) * capacity + place) * sizeof(ProgramStamp);
    }

    RINGDOVE_INLINE void stamp(u32 field) const {
        if (own.stamp != 0) {
            ptx::store<u64>(own.stamp + field, ptx::global_time_ns());
        }
    }

    // The last word of it makes it count.
    RINGDOVE_INLINE void end_stamp(u32 number, u64 iteration) const {
        if (own.stamp != 0) {
            ptx::store<u32>(own.stamp + __builtin_offsetof(ProgramStamp, task), number);
            ptx::store<u64>(own.stamp + __builtin_offsetof(ProgramStamp, iteration), iteration);
            stamp(__builtin_offsetof(ProgramStamp, ended_ns));
        }
    }

    RINGDOVE_INLINE void load_image(const ProgramArguments& arguments) {
        state.place = {0, 0, 0, 0, 0};
        load_record(state.communicator, arguments.communicator);
        state.sequence = arguments.sequence;
        state.call = 0;
        load_record(own.header, arguments.program);
        own.block = {0, 1};
        own.is_over = 0;
        // The launch before has ended it.
        own.iteration = ptx::load<u64>(own.header.state +
                                       __builtin_offsetof(ProgramState, released));
        if (own.header.magic != PROGRAM_MAGIC) {
            refuse(PlanFault::Magic, PROGRAM_MAGIC, own.header.magic);
        } else if (has_failed_before(state.communicator)) {
            failed = STOPPED;
        } else if (ProgramMode(arguments.mode) == ProgramMode::Resident) {
            if (ptx::block_count() != own.header.block_count) {
                refuse(PlanFault::BlockCount, own.header.block_count, ptx::block_count());
            } else {
                load_record(own.block,
                            own.header.blocks + ptx::block_index() * sizeof(ProgramBlock));
            }
        }
    }

    // Operands in batches are where the iteration says.
    RINGDOVE_INLINE void place_batches(u64 iteration) {
        const u32 which = own.task.elements >> BATCH_OPERANDS_SHIFT;
        if (which == 0) {
            return;
        }
        const u64 batches = own.header.state + __builtin_offsetof(ProgramState, batches) +
                            u32(iteration) % STATE_ITERATIONS * (BATCHES * sizeof(u64));
#pragma unroll 1
        for (u32 i = 0; i < TASK_OPERANDS; ++i) {
            u64& address = own.task.operands[i].address;
            if ((which >> i & 1) != 0) {
                const u64 number = address >> BATCH_NUMBER_SHIFT;
                address = ptx::load<u64>(batches + number * sizeof(u64)) +
                          (address & ((1ull << BATCH_NUMBER_SHIFT) - 1));
            }
        }
    }

    RINGDOVE_INLINE u64 counter(u32 number) const {
        return own.header.counters + static_cast<u64>(number) * sizeof(u64);
    }

    RINGDOVE_INLINE WaitSite counter_site(u32 task, u32 number, u64 iteration) const {
        return {WaitKind::Counter, task,      number, 0, NO_PORT, NO_RANK,
                iteration,         state.sequence, 0};
    }

    RINGDOVE_INLINE void wait_for_counters(u32 number, u64 iteration) {
#pragma unroll 1
        for (u32 i = 0; i < own.task.wait_count && failed == FINE; ++i) {
            const u64 record =
                own.header.waits + static_cast<u64>(own.task.waits + i) * sizeof(ProgramWait);
            ProgramWait wait;
            load_record(wait, record);
            // Before zero where the iteration before is none: such a wait is over at once.
            const u64 expected = wait.raises * (iteration - wait.lag) + wait.count;
            u64 seen = 0;
            if (!wait_or_record(state.communicator, counter(wait.counter), expected,
                                counter_site(number, wait.counter, iteration), seen)) {
                failed = STOPPED;
            }
        }
    }

    // Waits for the host, however long it takes.
    template <class Poll>
    RINGDOVE_INLINE bool wait_for_host(Poll& poll, u64 iteration) {
        for (;;) {
            u64 waited_ns = 0;
            const WaitEnd end = poll() ? WaitEnd::Reached
                                       : poll_until(state.communicator, poll, waited_ns);
            if (end == WaitEnd::Reached) {
                // With the relaxed load that saw the value: an acquire. Pairs with the host's
                // release of the mailbox's words, and with `release` of block 0.
                ptx::fence_acquire_release_system();
                return true;
            }
            if (end != WaitEnd::Expired) {
                record_wait(state.communicator, counter_site(NO_COUNTER, NO_COUNTER, iteration),
                            end, iteration, 0, waited_ns);
                failed = STOPPED;
                return false;
            }
        }
    }

    // False: no more iterations, or a failure.
    RINGDOVE_INLINE bool begin_iteration(u64 iteration, u64 release) {
        const u64 program_state = own.header.state;
        const u64 released = program_state + __builtin_offsetof(ProgramState, released);
        const u64 stop_at = program_state + __builtin_offsetof(ProgramState, stop_at);
        if (ptx::block_index() != 0) {
            CounterPoll poll = {released, release + 1, 0};
            return wait_for_host(poll, iteration) &&
                   ptx::load<u64>(stop_at) != release + 1;
        }
        if (iteration >= ITERATIONS_AT_ONCE && !wait_for_all(iteration - ITERATIONS_AT_ONCE)) {
            return false;
        }
        MailboxPoll poll = {own.header.mailbox, iteration};
        if (!wait_for_host(poll, iteration)) {
            return false;
        }
        if (poll.is_granted) {
            copy_parameters(iteration);
        } else {
            ptx::store<u64>(stop_at, release + 1);
        }
        // Pairs with `wait_for_host` of the other blocks.
        ptx::store_release_gpu_u64(released, release + 1);
        return poll.is_granted;
    }

    RINGDOVE_INLINE u64 ended_word(u64 iteration) const {
        return own.header.state + __builtin_offsetof(ProgramState, ended) +
               u32(iteration) % STATE_ITERATIONS * sizeof(u64);
    }

    // What that word has come to when all blocks have ended the iteration.
    RINGDOVE_INLINE u64 ended_count(u64 iteration) const {
        return (iteration / STATE_ITERATIONS + 1) * own.header.block_count;
    }

    RINGDOVE_INLINE bool wait_for_all(u64 iteration) {
        u64 seen = 0;
        const bool is_fine = wait_or_record(
            state.communicator, ended_word(iteration), ended_count(iteration),
            counter_site(NO_COUNTER, NO_COUNTER, iteration), seen);
        failed = is_fine ? failed : STOPPED;
        return is_fine;
    }

    RINGDOVE_INLINE void end_iteration(u64 iteration) {
        // A release of all that the block has done, and, for whoever is last, an acquire of what
        // the others have: pairs with itself, and with `wait_for_all`.
        ptx::fence_acquire_release_system();
        const u64 before = ptx::fetch_add_relaxed_gpu_u64(ended_word(iteration), 1);
        if (before + 1 == ended_count(iteration)) {
            tell_host(iteration);
        }
    }

    RINGDOVE_INLINE void tell_host(u64 iteration) {
        // Results and all else first. Pairs with the host's acquire load of `done`.
        ptx::fence_acquire_release_system();
        ptx::store_relaxed_system_u64(own.header.mailbox + __builtin_offsetof(Mailbox, done),
                                      iteration + 1);
    }

    RINGDOVE_INLINE void copy_parameters(u64 iteration) {
        const u64 from = own.header.mailbox + __builtin_offsetof(Mailbox, parameters) +
                         u32(iteration) % MAILBOX_ITERATIONS * (PARAMETERS * sizeof(u32));
        const u64 to = own.header.state + __builtin_offsetof(ProgramState, parameters) +
                       u32(iteration) % STATE_ITERATIONS * (PARAMETERS * sizeof(float));
#pragma unroll 1
        for (u32 i = 0; i < PARAMETERS; ++i) {
            ptx::store<u32>(to + i * sizeof(u32),
                            ptx::load_relaxed_system_u32(from + i * sizeof(u32)));
        }
        const u64 given = own.header.mailbox + __builtin_offsetof(Mailbox, batches) +
                          u32(iteration) % MAILBOX_ITERATIONS * (BATCHES * sizeof(u64));
        const u64 batches = own.header.state + __builtin_offsetof(ProgramState, batches) +
                            u32(iteration) % STATE_ITERATIONS * (BATCHES * sizeof(u64));
#pragma unroll 1
        for (u32 i = 0; i < own.header.batch_count; ++i) {
            ptx::store<u64>(batches + i * sizeof(u64),
                            ptx::load_relaxed_system_u64(given + i * sizeof(u64)));
        }
    }
};

}  // namespace ringdove
