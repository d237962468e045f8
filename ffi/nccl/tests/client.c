/* A client of libnccl.so.2 in C: one thread, one process, N virtual GPUs. Calls every function that
 * is implemented, well and badly. Prints a line for each thing that is not as it should be, and ends
 * with their number. */
#define _GNU_SOURCE
#include "nccl.h"

#include "expect.h"

#include <cuda.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, COUNT = 1000, WHOLE = RANKS * COUNT };

static CUcontext contexts[RANKS];
static ncclComm_t comms[RANKS];
static cudaStream_t streams[RANKS];
static float *sends[RANKS], *receives[RANKS];
static float host[WHOLE];

/* No call changes the caller's current context. */
#define OK(call)                                                                     \
    do {                                                                             \
        CUcontext before = current();                                                \
        ncclResult_t result = (call);                                                \
        EXPECT(result == ncclSuccess, "%d: %s", result, ncclGetLastError(NULL));     \
        EXPECT(current() == before, "another context is current: %s", #call);        \
    } while (0)
#define REFUSED(status, word, call)                                                       \
    do {                                                                                  \
        ncclResult_t result = (call);                                                     \
        EXPECT(result == (status), "%d", result);                                         \
        EXPECT(strstr(ncclGetLastError(NULL), word), "%s", ncclGetLastError(NULL));       \
    } while (0)

/* Null where none is current, or the driver was not started. */
static CUcontext current(void) {
    CUcontext context = NULL;
    cuCtxGetCurrent(&context);
    return context;
}

/* Element i of rank r's input. */
static float value(int r, int i) { return (float)((i * 7 + r * 13) % 100); }

static void fill(void) {
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        for (int i = 0; i < WHOLE; i++) host[i] = value(r, i);
        CUDA(cuMemcpyHtoD((CUdeviceptr)sends[r], host, sizeof host));
        for (int i = 0; i < WHOLE; i++) host[i] = -1;
        CUDA(cuMemcpyHtoD((CUdeviceptr)receives[r], host, sizeof host));
        /* The driver may have taken the bytes, and not yet put them where other streams see them. */
        CUDA(cuCtxSynchronize());
    }
}

static void download(int r) {
    CUDA(cuCtxSetCurrent(contexts[r]));
    CUDA(cuStreamSynchronize(streams[r]));
    CUDA(cuMemcpyDtoH(host, (CUdeviceptr)receives[r], sizeof host));
}

static float sum(int i) {
    float total = 0;
    for (int r = 0; r < RANKS; r++) total += value(r, i);
    return total;
}

/* Each rank's result, from `first` to `end`, is `wanted(r, i)`, and the rest is untouched. */
static void compare(const char *what, int r, int end, float (*wanted)(int r, int i)) {
    download(r);
    for (int i = 0; i < WHOLE; i++) {
        float expected = i < end ? wanted(r, i) : -1;
        if (host[i] != expected) {
            printf("%s: rank %d element %d: expected %g, seen %g\n", what, r, i, expected, host[i]);
            wrong++;
            return;
        }
    }
}

static float w_sum(int r, int i) { (void)r; return sum(i); }
static float w_max(int r, int i) {
    (void)r;
    float most = 0;
    for (int k = 0; k < RANKS; k++) most = value(k, i) > most ? value(k, i) : most;
    return most;
}
static float w_half(int r, int i) { return w_sum(r, i) / 2; }
static float w_scatter(int r, int i) { return sum(r * COUNT + i); }
static float w_gather(int r, int i) { (void)r; return value(i / COUNT, i % COUNT); }
static float w_root(int r, int i) { (void)r; return value(1, i); }
static float w_all(int r, int i) { return value(i / COUNT, r * COUNT + i % COUNT); }
static float w_part(int r, int i) { return value(2, r * COUNT + i); }
static float w_left(int r, int i) { return value((r + RANKS - 1) % RANKS, i); }

#define EACH(call)                          \
    do {                                    \
        fill();                             \
        OK(ncclGroupStart());               \
        for (int r = 0; r < RANKS; r++) OK(call); \
        OK(ncclGroupEnd());                 \
    } while (0)
#define COMPARE(what, end, wanted) \
    for (int r = 0; r < RANKS; r++) compare(what, r, end, wanted)

static void collectives(void) {
    EACH(ncclAllReduce(sends[r], receives[r], COUNT, ncclFloat, ncclSum, comms[r], streams[r]));
    COMPARE("all-reduce", COUNT, w_sum);
    EACH(pncclAllReduce(sends[r], receives[r], WHOLE, ncclFloat, ncclMax, comms[r], streams[r]));
    COMPARE("all-reduce, max", WHOLE, w_max);
    EACH(ncclReduceScatter(sends[r], receives[r], COUNT, ncclFloat, ncclSum, comms[r], streams[r]));
    COMPARE("reduce-scatter", COUNT, w_scatter);
    EACH(ncclAllGather(sends[r], receives[r], COUNT, ncclFloat, comms[r], streams[r]));
    COMPARE("all-gather", WHOLE, w_gather);
    EACH(ncclBroadcast(sends[r], receives[r], COUNT, ncclFloat, 1, comms[r], streams[r]));
    COMPARE("broadcast", COUNT, w_root);
    EACH(ncclAlltoAll(sends[r], receives[r], COUNT, ncclFloat, comms[r], streams[r]));
    COMPARE("all-to-all", WHOLE, w_all);
    EACH(ncclScatter(sends[r], receives[r], COUNT, ncclFloat, 2, comms[r], streams[r]));
    COMPARE("scatter", COUNT, w_part);
    EACH(ncclReduce(sends[r], r == 3 ? receives[r] : NULL, COUNT, ncclFloat, ncclSum, 3, comms[r],
                    streams[r]));
    compare("reduce", 3, COUNT, w_sum);
    compare("reduce, another rank", 0, 0, w_sum);
    EACH(ncclGather(sends[r], r == 0 ? receives[r] : NULL, COUNT, ncclFloat, 0, comms[r],
                    streams[r]));
    compare("gather", 0, WHOLE, w_gather);
    compare("gather, another rank", 1, 0, w_gather);

    fill();
    for (int r = 0; r < RANKS; r++) OK(ncclBcast(sends[r], COUNT, ncclFloat, 1, comms[r], streams[r]));
    for (int r = 0; r < RANKS; r++) {
        download(r);
        CUDA(cuMemcpyDtoH(host, (CUdeviceptr)sends[r], sizeof host));
        for (int i = 0; i < COUNT; i++) EXPECT(host[i] == value(1, i), "bcast, rank %d", r);
    }
    /* Nothing to do is something to do. */
    EACH(ncclAllReduce(sends[r], receives[r], 0, ncclFloat, ncclSum, comms[r], streams[r]));
    COMPARE("empty all-reduce", 0, w_sum);
}

/* Each rank has `one` 64 times; all have `four` afterwards. */
static void byte_floats(ncclDataType_t type, unsigned char one, unsigned char four) {
    unsigned char *bytes = (unsigned char *)host;
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        for (int i = 0; i < 64; i++) bytes[i] = one;
        CUDA(cuMemcpyHtoD((CUdeviceptr)sends[r], bytes, 64));
        CUDA(cuCtxSynchronize());
    }
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclAllReduce(sends[r], receives[r], 64, type, ncclSum, comms[r], streams[r]));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        download(r);
        for (int i = 0; i < 64; i++)
            EXPECT(bytes[i] == four, "type %d, rank %d, byte %d: %x", type, r, i, bytes[i]);
    }
}

static void groups(void) {
    /* To the right, from the left; receives are named first. */
    fill();
    OK(ncclGroupStart());
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        OK(ncclRecv(receives[r], COUNT, ncclFloat, (r + RANKS - 1) % RANKS, comms[r], streams[r]));
        OK(ncclSend(sends[r], COUNT, ncclFloat, (r + 1) % RANKS, comms[r], streams[r]));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        download(r);
        EXPECT(host[0] == -1, "an inner end lets calls happen, rank %d", r);
    }
    OK(ncclGroupEnd());
    COMPARE("send and receive", COUNT, w_left);

    /* In place: nobody knows which data comes, and the calls behind it are not disturbed. */
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        OK(ncclSend(receives[r], COUNT, ncclFloat, (r + 1) % RANKS, comms[r], streams[r]));
        OK(ncclRecv(receives[r], COUNT, ncclFloat, (r + RANKS - 1) % RANKS, comms[r], streams[r]));
    }
    OK(ncclGroupEnd());

    /* Two collectives and a ring in one group. */
    fill();
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        OK(ncclSend(sends[r], COUNT, ncclFloat, (r + 1) % RANKS, comms[r], streams[r]));
        OK(ncclAllReduce(sends[r], receives[r], WHOLE, ncclFloat, ncclSum, comms[r], streams[r]));
        OK(ncclAllGather(sends[r], receives[r], COUNT, ncclFloat, comms[r], streams[r]));
        OK(ncclRecv(receives[r], COUNT, ncclFloat, (r + RANKS - 1) % RANKS, comms[r], streams[r]));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        download(r);
        for (int i = 0; i < WHOLE; i++) {
            float expected = i < COUNT ? w_left(r, i) : w_gather(r, i);
            EXPECT(host[i] == expected, "mixed group, rank %d element %d: %g", r, i, host[i]);
        }
    }

    /* A call that is refused ends the group: nothing of it happens. */
    fill();
    OK(ncclGroupStart());
    OK(ncclAllReduce(sends[0], receives[0], COUNT, ncclFloat, ncclSum, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "datatype",
            ncclAllReduce(sends[1], receives[1], COUNT, (ncclDataType_t)99, ncclSum, comms[1], streams[1]));
    REFUSED(ncclInvalidArgument, "datatype", ncclGroupEnd());
    compare("refused group", 0, 0, w_sum);
    REFUSED(ncclInvalidUsage, "ncclGroupStart", ncclGroupEnd());
}

static void scalars(void) {
    float half = 0.5f;
    ncclRedOp_t ops[RANKS];
    for (int r = 0; r < RANKS; r++)
        OK(ncclRedOpCreatePreMulSum(&ops[r], &half, ncclFloat, ncclScalarHostImmediate, comms[r]));
    half = 100;
    EACH(ncclAllReduce(sends[r], receives[r], COUNT, ncclFloat, ops[r], comms[r], streams[r]));
    COMPARE("host scalar", COUNT, w_half);
    REFUSED(ncclInvalidArgument, "datatype",
            ncclAllReduce(sends[0], receives[0], COUNT, ncclInt, ops[0], comms[0], streams[0]));
    for (int r = 0; r < RANKS; r++) OK(ncclRedOpDestroy(ops[r], comms[r]));
    REFUSED(ncclInvalidArgument, "op",
            ncclAllReduce(sends[0], receives[0], COUNT, ncclFloat, ops[0], comms[0], streams[0]));

    CUdeviceptr device[RANKS];
    half = 0.5f;
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuMemAlloc(&device[r], sizeof half));
        CUDA(cuMemcpyHtoD(device[r], &half, sizeof half));
        CUDA(cuCtxSynchronize());
        OK(ncclRedOpCreatePreMulSum(&ops[r], (void *)device[r], ncclFloat, ncclScalarDevice, comms[r]));
    }
    EACH(ncclAllReduce(sends[r], receives[r], COUNT, ncclFloat, ops[r], comms[r], streams[r]));
    COMPARE("device scalar", COUNT, w_half);
    for (int r = 0; r < RANKS; r++) OK(ncclRedOpDestroy(ops[r], comms[r]));
}

static void badly(void) {
    int number;
    ncclComm_t comm = NULL;
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    REFUSED(ncclInvalidArgument, "version", ncclGetVersion(NULL));
    for (int r = 0; r < RANKS; r++) {
        ncclTeam_t world = ncclTeamWorld(comms[r]), near = ncclTeamLsa(comms[r]);
        EXPECT(world.nRanks == RANKS && world.rank == r && world.stride == 1, "rank %d", r);
        EXPECT(near.nRanks == 1 && near.rank == 0 && near.stride == 1, "rank %d", r);
    }
    EXPECT(ncclTeamWorld(NULL).nRanks == 0 && strstr(ncclGetLastError(NULL), "comm"), "no team");
    REFUSED(ncclInvalidArgument, "uniqueId", ncclGetUniqueId(NULL));
    REFUSED(ncclInvalidArgument, "comm", ncclCommInitRank(NULL, 2, id, 0));
    REFUSED(ncclInvalidArgument, "rank", ncclCommInitRank(&comm, 2, id, 2));
    REFUSED(ncclInvalidArgument, "rank", ncclCommInitRank(&comm, 2, id, -1));
    REFUSED(ncclInvalidArgument, "nranks", ncclCommInitRank(&comm, -2, id, 0));
    memset(&id, 0x5a, sizeof id);
    REFUSED(ncclInvalidArgument, "id", ncclCommInitRank(&comm, 1, id, 0));
    ncclConfig_t config;
    memset(&config, 0, sizeof config);
    REFUSED(ncclInvalidArgument, "config", ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    int far[] = {0, 1000};
    REFUSED(ncclInvalidArgument, "devlist", ncclCommInitAll(&comm, 2, far));
    REFUSED(ncclInvalidArgument, "ndev", ncclCommInitAll(&comm, 0, NULL));
    REFUSED(ncclInvalidArgument, "comm", ncclCommCount(NULL, &number));
    REFUSED(ncclInvalidArgument, "comm", ncclCommCount((ncclComm_t)0x1234567890, &number));
    REFUSED(ncclInvalidArgument, "count", ncclCommCount(comms[0], NULL));
    REFUSED(ncclInvalidArgument, "root",
            ncclBroadcast(sends[0], receives[0], 1, ncclFloat, RANKS, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "root",
            ncclReduce(sends[0], receives[0], 1, ncclFloat, ncclSum, -1, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "peer", ncclSend(sends[0], 1, ncclFloat, RANKS, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "send buffer",
            ncclAllReduce(NULL, receives[0], 1, ncclFloat, ncclSum, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "send buffer",
            ncclAllReduce(sends[0], receives[0], (size_t)WHOLE * 1000, ncclFloat, ncclSum, comms[0],
                          streams[0]));
    REFUSED(ncclInvalidArgument, "count",
            ncclAllReduce(sends[0], receives[0], SIZE_MAX, ncclFloat, ncclSum, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "op",
            ncclAllReduce(sends[0], receives[0], 1, ncclFloat, (ncclRedOp_t)77, comms[0], streams[0]));
    REFUSED(ncclInvalidArgument, "residence",
            ncclRedOpCreatePreMulSum((ncclRedOp_t *)&number, host, ncclFloat,
                                     (ncclScalarResidence_t)9, comms[0]));
    REFUSED(ncclInvalidArgument, "handle", ncclCommDeregister(comms[0], NULL));
    REFUSED(ncclInvalidArgument, "color", ncclCommSplit(comms[0], -2, 0, &comm, NULL));
    REFUSED(ncclInvalidArgument, "newcomm", ncclCommSplit(comms[0], 0, 0, NULL, NULL));
    int away[] = {RANKS};
    REFUSED(ncclInvalidArgument, "excluded rank", ncclCommShrink(comms[0], away, 1, &comm, NULL, 0));
    REFUSED(ncclInvalidArgument, "excludeRanksList", ncclCommShrink(comms[0], NULL, 1, &comm, NULL, 0));
    REFUSED(ncclInvalidArgument, "shrinkFlags", ncclCommShrink(comms[0], away, 1, &comm, NULL, 2));
    REFUSED(ncclInvalidArgument, "newcomm", ncclCommShrink(comms[0], away, 1, NULL, NULL, 0));
    REFUSED(ncclInvalidArgument, "number of ranks", ncclCommGrow(comms[0], RANKS, NULL, -1, &comm, NULL));
    REFUSED(ncclInvalidArgument, "rank", ncclCommGrow(comms[0], RANKS + 1, NULL, 0, &comm, NULL));
    REFUSED(ncclInvalidArgument, "uniqueId", ncclCommGrow(NULL, RANKS + 1, NULL, RANKS, &comm, NULL));
    REFUSED(ncclInvalidArgument, "uniqueId", ncclCommGetUniqueId(comms[0], NULL));
    ncclResult_t ncclDevCommDestroy(void);
    REFUSED(ncclInvalidUsage, "does not implement", ncclDevCommDestroy());
    EXPECT(strlen(ncclGetErrorString(ncclInvalidUsage)) > 0, "no text");
    EXPECT(ncclGetErrorString((ncclResult_t)-7) != NULL, "no text");
    /* None of it has hurt the communicators. */
    ncclResult_t state;
    for (int r = 0; r < RANKS; r++) {
        OK(ncclCommGetAsyncError(comms[r], &state));
        EXPECT(state == ncclSuccess, "%d", state);
    }
}

/* Ranks 3 and 1 form a group, in this order; 0 is alone, 2 in none. */
static void split(void) {
    static const int colors[RANKS] = {7, 5, NCCL_SPLIT_NOCOLOR, 5};
    ncclComm_t groups[RANKS];
    memset(groups, 0x5a, sizeof groups);
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) OK(ncclCommSplit(comms[r], colors[r], -r, &groups[r], NULL));
    OK(ncclGroupEnd());
    EXPECT(groups[2] == NULL, "%p", (void *)groups[2]);
    int rank = -1, count = -1;
    OK(ncclCommUserRank(groups[1], &rank));
    OK(ncclCommCount(groups[1], &count));
    EXPECT(rank == 1 && count == 2, "rank %d of %d", rank, count);
    fill();
    OK(ncclGroupStart());
    for (int r = 1; r <= 3; r += 2)
        OK(ncclAllGather(sends[r], receives[r], COUNT, ncclFloat, groups[r], streams[r]));
    OK(ncclAllReduce(sends[0], receives[0], COUNT, ncclFloat, ncclSum, groups[0], streams[0]));
    OK(ncclGroupEnd());
    for (int r = 1; r <= 3; r += 2) {
        download(r);
        for (int i = 0; i < 2 * COUNT; i++) {
            float expected = i < COUNT ? value(3, i) : value(1, i - COUNT);
            EXPECT(host[i] == expected, "split, rank %d element %d: %g", r, i, host[i]);
        }
    }
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommDestroy(groups[r]));
}

/* All but rank 1 form a communicator, and take its device in again, as the last rank. */
static void shrink_and_grow(void) {
    ncclComm_t fewer[RANKS] = {NULL}, all[RANKS] = {NULL};
    int excluded[] = {1}, rank = -1, count = -1;
    ncclUniqueId id;
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        if (r != 1) OK(ncclCommShrink(comms[r], excluded, 1, &fewer[r], NULL, NCCL_SHRINK_DEFAULT));
    OK(ncclGroupEnd());
    OK(ncclCommUserRank(fewer[RANKS - 1], &rank));
    OK(ncclCommCount(fewer[RANKS - 1], &count));
    EXPECT(rank == RANKS - 2 && count == RANKS - 1, "rank %d of %d", rank, count);
    fill();
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        if (r != 1) OK(ncclAllGather(sends[r], receives[r], COUNT, ncclFloat, fewer[r], streams[r]));
    OK(ncclGroupEnd());
    download(RANKS - 1);
    for (int i = 0; i < COUNT; i++)
        EXPECT(host[i] == value(0, i) && host[COUNT + i] == value(2, i), "shrunk, element %d", i);
    OK(ncclCommGetUniqueId(fewer[2], &id));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        if (r == 1)
            OK(ncclCommGrow(NULL, RANKS, &id, RANKS - 1, &all[r], NULL));
        else
            OK(ncclCommGrow(fewer[r], RANKS, r == 2 ? &id : NULL, -1, &all[r], NULL));
    }
    OK(ncclGroupEnd());
    OK(ncclCommUserRank(all[1], &rank));
    EXPECT(rank == RANKS - 1, "rank %d", rank);
    EACH(ncclAllReduce(sends[r], receives[r], COUNT, ncclFloat, ncclSum, all[r], streams[r]));
    COMPARE("grown", COUNT, w_sum);
    for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(all[r]));
    for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(fewer[r]));
}

static void memory(void) {
    void *buffer = NULL, *handle = NULL;
    CUDA(cuCtxSetCurrent(contexts[0]));
    OK(ncclMemAlloc(&buffer, 4096));
    OK(ncclCommRegister(comms[0], buffer, 4096, &handle));
    OK(ncclCommDeregister(comms[0], handle));
    REFUSED(ncclInvalidArgument, "handle", ncclCommDeregister(comms[0], handle));
    OK(ncclMemFree(buffer));
    OK(ncclMemFree(NULL));
    uint64_t bytes = 0;
    OK(ncclCommMemStats(comms[0], ncclStatGpuMemTotal, &bytes));
    EXPECT(bytes > 1 << 20 && bytes < 1 << 30, "%llu bytes", (unsigned long long)bytes);
    OK(ncclCommMemStats(comms[0], ncclStatGpuMemSuspended, &bytes));
    EXPECT(bytes == 0, "%llu", (unsigned long long)bytes);
    REFUSED(ncclInvalidArgument, "stat", ncclCommMemStats(comms[0], (ncclCommMemStat_t)4, &bytes));
    REFUSED(ncclInvalidArgument, "value", ncclCommMemStats(comms[0], ncclStatGpuMemTotal, NULL));
}

/* Collectives between windows, on communicators of their own: one of them ends badly. */
static void windows(void) {
    enum { BYTES = 1 << 20, FLOATS = BYTES / sizeof(float) };
    ncclComm_t own[RANKS];
    ncclWindow_t ends[RANKS], staged = NULL, none = NULL;
    float *buffers[RANKS], *copy = malloc(BYTES);
    OK(ncclCommInitAll(own, RANKS, NULL));
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        OK(ncclMemAlloc((void **)&buffers[r], BYTES));
        for (int i = 0; i < FLOATS; i++) copy[i] = value(r, i);
        CUDA(cuMemcpyHtoD((CUdeviceptr)buffers[r], copy, BYTES));
        CUDA(cuCtxSynchronize());
    }
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommWindowRegister(own[r], buffers[r], BYTES, &ends[r], NCCL_WIN_COLL_SYMMETRIC));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        void *address = NULL;
        OK(ncclWinGetUserPtr(own[r], ends[r], &address));
        EXPECT(address == buffers[r], "%p", address);
    }
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
        OK(ncclAllReduce(buffers[r], buffers[r], FLOATS, ncclFloat, ncclSum, own[r], streams[r]));
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuStreamSynchronize(streams[r]));
        CUDA(cuMemcpyDtoH(copy, (CUdeviceptr)buffers[r], BYTES));
        for (int i = 0; i < FLOATS; i++)
            EXPECT(copy[i] == sum(i), "rank %d, element %d: %f", r, i, copy[i]);
    }
    REFUSED(ncclInvalidArgument, "winFlags", ncclCommWindowRegister(own[0], buffers[0], 8, &none, 4));
    REFUSED(ncclInvalidArgument, "buff", ncclCommWindowRegister(own[0], NULL, 8, &none, 0));
    REFUSED(ncclInvalidArgument, "win", ncclCommWindowRegister(own[0], buffers[0], 8, NULL, 0));
    REFUSED(ncclInvalidArgument, "win", ncclCommWindowDeregister(own[1], (ncclWindow_t)8));
    OK(ncclCommWindowDeregister(own[0], NULL));
    /* One without the flag is no agreement of the ranks, and may be of one of them alone. */
    OK(ncclCommWindowRegister(own[0], buffers[0], 8, &staged, NCCL_WIN_DEFAULT));
    OK(ncclCommWindowDeregister(own[0], staged));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) OK(ncclCommWindowDeregister(own[r], ends[r]));
    OK(ncclGroupEnd());
    REFUSED(ncclInvalidArgument, "win", ncclCommWindowDeregister(own[0], ends[0]));

    /* Other offsets on one rank break the promise: that they are noticed shows that the windows
     * are used. */
    for (int r = 0; r < RANKS; r++)
        OK(ncclCommWindowRegister(own[r], buffers[r], BYTES, &ends[r], NCCL_WIN_COLL_SYMMETRIC));
    ncclResult_t result = ncclSuccess;
    for (int r = 0; r < RANKS && result == ncclSuccess; r++) {
        float *part = buffers[r] + (r == 2 ? 16 : 0);
        result = ncclAllReduce(part, part, COUNT, ncclFloat, ncclSum, own[r], streams[r]);
    }
    EXPECT(result == ncclInvalidUsage, "%d", result);
    EXPECT(strstr(ncclGetLastError(NULL), "offset in the input's registration"), "%s",
           ncclGetLastError(NULL));
    for (int r = 0; r < RANKS; r++) OK(ncclCommWindowDeregister(own[r], ends[r]));
    for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(own[r]));
    for (int r = 0; r < RANKS; r++) OK(ncclMemFree(buffers[r]));
    free(copy);
}

/* All ranks of a new communicator, joined by one thread in a group. */
static void join(ncclConfig_t *config) {
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        ncclResult_t result = config ? ncclCommInitRankConfig(&comms[r], RANKS, id, r, config)
                                     : ncclCommInitRank(&comms[r], RANKS, id, r);
        EXPECT(result == ncclSuccess, "%s", ncclGetLastError(NULL));
    }
    ncclResult_t result = ncclGroupEnd();
    EXPECT(result == (config ? ncclInProgress : ncclSuccess), "%d: %s", result, ncclGetLastError(NULL));
    for (int r = 0; r < RANKS; r++) {
        ncclResult_t state = ncclInProgress;
        while (state == ncclInProgress) OK(ncclCommGetAsyncError(comms[r], &state));
        EXPECT(state == ncclSuccess, "%d: %s", state, ncclGetLastError(comms[r]));
    }
}

static void leave(void) {
    for (int r = 0; r < RANKS; r++) OK(ncclCommFinalize(comms[r]));
    for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(comms[r]));
    int number;
    REFUSED(ncclInvalidArgument, "comm", ncclCommCount(comms[0], &number));
    REFUSED(ncclInvalidArgument, "comm", ncclCommDestroy(comms[0]));
}

/* A graph of two collectives, with what the host has put into the buffers before each launch. */
static void graphs(void) {
    CUgraph graph;
    CUgraphExec graphs[RANKS];
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuStreamBeginCapture(streams[r], CU_STREAM_CAPTURE_MODE_RELAXED));
    }
    for (int call = 0; call < 2; call++) {
        OK(ncclGroupStart());
        for (int r = 0; r < RANKS; r++)
            OK(ncclAllReduce(call ? receives[r] : sends[r], receives[r], COUNT, ncclFloat,
                             call ? ncclMax : ncclSum, comms[r], streams[r]));
        OK(ncclGroupEnd());
    }
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuStreamEndCapture(streams[r], &graph));
        CUDA(cuGraphInstantiateWithFlags(&graphs[r], graph, 0));
        CUDA(cuGraphDestroy(graph));
    }
    for (int launch = 0; launch < 3; launch++) {
        fill();
        for (int r = 0; r < RANKS; r++) {
            CUDA(cuCtxSetCurrent(contexts[r]));
            CUDA(cuGraphLaunch(graphs[r], streams[r]));
        }
        COMPARE("graph", COUNT, w_sum);
        EACH(ncclAllReduce(sends[r], receives[r], COUNT, ncclFloat, ncclSum, comms[r], streams[r]));
        COMPARE("between graphs", COUNT, w_sum);
    }
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuGraphExecDestroy(graphs[r]));
    }
}

/* Waits for rank 0's work, which waits for the others. */
static void *finalize(void *thread) {
    *(_Atomic pid_t *)thread = gettid();
    ncclResult_t result = ncclCommFinalize(comms[0]);
    EXPECT(result == ncclRemoteError, "%d: %s", result, ncclGetLastError(NULL));
    EXPECT(strstr(ncclGetLastError(NULL), "ncclCommAbort"), "%s", ncclGetLastError(NULL));
    return NULL;
}

static bool sleeps(pid_t thread) {
    char name[64], state = 0;
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    FILE *file = fopen(name, "r");
    bool read = file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    if (file) fclose(file);
    return read && state == 'S';
}

/* What waits in one thread is ended by another. */
static void abort_beside_finalize(void) {
    OK(ncclCommInitAll(comms, RANKS, NULL));
    OK(ncclAllReduce(sends[0], receives[0], COUNT, ncclFloat, ncclSum, comms[0], streams[0]));
    _Atomic pid_t waiting = 0;
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, finalize, &waiting) == 0, "no thread");
    while (!waiting || !sleeps(waiting)) sched_yield();
    alarm(120);
    OK(ncclCommAbort(comms[0]));
    pthread_join(thread, NULL);
    alarm(0);
    for (int r = 1; r < RANKS; r++) OK(ncclCommDestroy(comms[r]));
}

int main(void) {
    int version = 0, devices = 0;
    OK(ncclGetVersion(&version));
    EXPECT(version == NCCL_VERSION_CODE, "%d", version);
    CUDA(cuInit(0));
    CUDA(cuDeviceGetCount(&devices));
    EXPECT(devices >= RANKS, "%d devices", devices);
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuDevicePrimaryCtxRetain(&contexts[r], r));
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuMemAlloc((CUdeviceptr *)&sends[r], sizeof host));
        CUDA(cuMemAlloc((CUdeviceptr *)&receives[r], sizeof host));
        CUDA(cuStreamCreate(&streams[r], 1));
    }
    join(NULL);
    for (int r = 0; r < RANKS; r++) {
        int count = 0, rank = -1, device = -1;
        OK(ncclCommCount(comms[r], &count));
        OK(ncclCommUserRank(comms[r], &rank));
        OK(ncclCommCuDevice(comms[r], &device));
        EXPECT(count == RANKS && rank == r && device == r, "%d %d %d", count, rank, device);
    }
    collectives();
    byte_floats(ncclFloat8e4m3, 0x38, 0x48);
    byte_floats(ncclFloat8e5m2, 0x3c, 0x44);
    groups();
    scalars();
    badly();
    memory();
    windows();
    split();
    shrink_and_grow();
    graphs();
    collectives();
    leave();

    /* Default streams mean those of each rank's device. */
    cudaStream_t own[RANKS];
    memcpy(own, streams, sizeof own);
    OK(ncclCommInitAll(comms, RANKS, NULL));
    for (uintptr_t handle = 0; handle <= 2; handle++) {
        for (int r = 0; r < RANKS; r++) streams[r] = (cudaStream_t)handle;
        collectives();
    }
    memcpy(streams, own, sizeof own);
    /* A stream may be destroyed as soon as its work is done. */
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuStreamDestroy(streams[r]));
        CUDA(cuStreamCreate(&streams[r], 1));
    }
    collectives();
    leave();

    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    /* A rank that has no work left leaves the others alone. */
    join(&config);
    collectives();
    OK(ncclCommAbort(comms[3]));
    for (int r = 0; r < 3; r++) {
        ncclResult_t state = ncclInProgress;
        OK(ncclCommGetAsyncError(comms[r], &state));
        EXPECT(state == ncclSuccess, "rank %d: %d: %s", r, state, ncclGetLastError(comms[r]));
    }
    /* An abort ends work that waits, on all ranks, and says so. */
    OK(ncclAllReduce(sends[0], receives[0], COUNT, ncclFloat, ncclSum, comms[0], streams[0]));
    OK(ncclCommAbort(comms[0]));
    CUDA(cuCtxSetCurrent(contexts[0]));
    CUDA(cuStreamSynchronize(streams[0]));
    for (int r = 1; r < 3; r++) {
        ncclResult_t state = ncclSuccess;
        OK(ncclCommGetAsyncError(comms[r], &state));
        EXPECT(state == ncclRemoteError, "rank %d: %d", r, state);
        EXPECT(strstr(ncclGetLastError(comms[r]), "ncclCommAbort"), "%s", ncclGetLastError(comms[r]));
        OK(ncclCommDestroy(comms[r]));
    }
    abort_beside_finalize();
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
