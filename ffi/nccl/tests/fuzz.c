/* Arguments and configurations that make no sense, drawn at random: each call has at least one of
 * them, has to be refused with a code and a message, and must leave the communicators as they are.
 *
 *   fuzz SEED CALLS
 *
 * Prints a line for each thing that is not as it should be, and ends with their number. */
#define _GNU_SOURCE
#include "nccl.h"

#include "fuzz.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 2, COUNT = 1024, BYTES = COUNT * 4 };

static CUcontext contexts[RANKS];
static CUstream streams[RANKS];
static ncclComm_t comms[RANKS];
static void *sends[RANKS], *receives[RANKS];
static ncclComm_t freed;
/* Where programs have other things. */
static char foreign[4096];
static float host[COUNT];

#define ONE_OF(values) values[draw(sizeof values / sizeof *values)]

/* What goes wrong with a call. */
enum { SEND = 1, RECEIVE = 2, SIZE = 4, TYPE = 8, OP = 16, ROOT = 32, COMM = 64, STREAM = 128 };

/* The arguments of a call, of which those in `bad` make no sense. */
struct arguments {
    void *send, *receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
    ncclComm_t comm;
    cudaStream_t stream;
};

static struct arguments arguments(int rank, int bad) {
    void *buffers[] = { NULL, host, foreign, (char *)receives[rank] + BYTES - 4, (void *)8,
                        (void *)UINTPTR_MAX, (char *)sends[rank] + 1 };
    const size_t counts[] = { COUNT + 1, SIZE_MAX, SIZE_MAX / 4 + 2, (size_t)1 << 40, 1 << 30 };
    const int types[] = { -1, 12, 13, 99, INT32_MAX, INT32_MIN };
    const int ops[] = { -1, 5, 6, 1000, INT32_MAX, INT32_MIN };
    const int roots[] = { -1, RANKS, 99, INT32_MAX, INT32_MIN };
    ncclComm_t others[] = { NULL, freed, (ncclComm_t)foreign, (ncclComm_t)sends[rank],
                            (ncclComm_t)(uintptr_t)draw(UINT64_MAX) };
    struct arguments all = { sends[rank], receives[rank], COUNT, ncclFloat32, ncclSum,
                             0,           comms[rank],    (cudaStream_t)streams[rank] };
    if (bad & SEND) all.send = ONE_OF(buffers);
    if (bad & RECEIVE) all.receive = ONE_OF(buffers);
    if (bad & SIZE) all.count = ONE_OF(counts);
    if (bad & TYPE) all.type = (ncclDataType_t)ONE_OF(types);
    if (bad & OP) all.op = (ncclRedOp_t)ONE_OF(ops);
    if (bad & ROOT) all.root = ONE_OF(roots);
    if (bad & COMM) all.comm = ONE_OF(others);
    if (bad & STREAM) all.stream = (cudaStream_t)streams[1 - rank];
    return all;
}

/* At least one of these. */
static int some_of(int kinds) {
    int bad = 0;
    while (!bad) bad = (int)draw(256) & kinds;
    /* Mostly just one, so that no other hides it. */
    if (draw(4)) bad &= -bad;
    return bad;
}

static void expect_refusal(const char *name, int bad, ncclResult_t result) {
    /* A buffer has no size of its own: one that is too long is seen where memory ends. */
    EXPECT(result == ncclInvalidArgument || result == ncclInvalidUsage, "%s, %#x: %d: %s", name,
           bad, result, ncclGetLastError(NULL));
    EXPECT(ncclGetLastError(NULL)[0], "%s, %#x: no message", name, bad);
}

#define TRY(kinds, name, ...)                                  \
    do {                                                       \
        int bad = some_of(kinds);                              \
        struct arguments a = arguments(rank, bad);             \
        expect_refusal(#name, bad, nccl##name(__VA_ARGS__));   \
    } while (0)

static void try_a_call(void) {
    const int rank = (int)draw(RANKS), both = SEND | RECEIVE | SIZE | TYPE | COMM | STREAM;
    switch (draw(18)) {
    case 0:
        TRY(both | OP, AllReduce, a.send, a.receive, a.count, a.type, a.op, a.comm, a.stream);
        break;
    case 1:
        /* Rank 0 alone has an output. */
        TRY((rank ? both & ~RECEIVE : both) | OP | ROOT, Reduce, a.send, a.receive, a.count,
            a.type, a.op, a.root, a.comm, a.stream);
        break;
    case 2:
        TRY(both | OP, ReduceScatter, a.send, a.receive, a.count, a.type, a.op, a.comm, a.stream);
        break;
    case 3:
        TRY((rank ? both & ~SEND : both) | ROOT, Broadcast, a.send, a.receive, a.count, a.type,
            a.root, a.comm, a.stream);
        break;
    case 4:
        TRY((both & ~SEND) | ROOT, Bcast, a.receive, a.count, a.type, a.root, a.comm, a.stream);
        break;
    case 5:
        TRY(both, AllGather, a.send, a.receive, a.count, a.type, a.comm, a.stream);
        break;
    case 6:
        TRY(both, AlltoAll, a.send, a.receive, a.count, a.type, a.comm, a.stream);
        break;
    case 7:
        TRY((rank ? both & ~RECEIVE : both) | ROOT, Gather, a.send, a.receive, a.count, a.type,
            a.root, a.comm, a.stream);
        break;
    case 8:
        TRY((rank ? both & ~SEND : both) | ROOT, Scatter, a.send, a.receive, a.count, a.type,
            a.root, a.comm, a.stream);
        break;
    case 9:
        TRY((both & ~RECEIVE) | ROOT, Send, a.send, a.count, a.type, a.root, a.comm, a.stream);
        break;
    case 10:
        TRY((both & ~SEND) | ROOT, Recv, a.receive, a.count, a.type, a.root, a.comm, a.stream);
        break;
    case 11: {
        int number;
        TRY(COMM, CommCount, a.comm, &number);
        TRY(COMM, CommUserRank, a.comm, &number);
        TRY(COMM, CommCuDevice, a.comm, &number);
        expect_refusal("CommCount", 0, ncclCommCount(comms[rank], NULL));
        break;
    }
    case 12: {
        ncclResult_t error;
        TRY(COMM, CommGetAsyncError, a.comm, &error);
        TRY(COMM, CommFinalize, a.comm);
        struct arguments a = arguments(rank, COMM);
        /* There is nothing to end, and no error: as with NCCL. */
        bool is_null = !a.comm;
        ncclResult_t ended = draw(2) ? ncclCommDestroy(a.comm) : ncclCommAbort(a.comm);
        EXPECT(ended == (is_null ? ncclSuccess : ncclInvalidArgument), "%p: %d", a.comm, ended);
        TRY(COMM, CommRevoke, a.comm, 0);
        break;
    }
    case 13: {
        ncclRedOp_t op;
        float scalar = 2;
        TRY(TYPE | COMM, RedOpCreatePreMulSum, &op, &scalar, a.type, ncclScalarHostImmediate,
            a.comm);
        TRY(OP | COMM, RedOpDestroy, a.op, a.comm);
        expect_refusal("RedOpCreatePreMulSum", 0,
                       ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat, 2, comms[rank]));
        break;
    }
    case 14: {
        void *handle;
        TRY(COMM, CommRegister, a.comm, a.send, BYTES, &handle);
        TRY(COMM, CommDeregister, a.comm, a.send);
        expect_refusal("CommDeregister", 0, ncclCommDeregister(comms[rank], foreign));
        break;
    }
    case 15: {
        ncclComm_t made;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        const int counts[] = { 0, -1, INT32_MIN, 65537, INT32_MAX };
        ncclUniqueId id;
        memset(&id, (int)draw(256), sizeof id);
        expect_refusal("CommInitRank", 0, ncclCommInitRank(&made, ONE_OF(counts), id, 0));
        expect_refusal("CommInitRank", 0, ncclCommInitRank(NULL, 1, id, 0));
        expect_refusal("CommInitRankConfig", 0,
                       ncclCommInitRankConfig(&made, 1, id, 1 + (int)draw(9), &config));
        break;
    }
    case 16: {
        ncclComm_t made[RANKS];
        const int counts[] = { 0, -1, 99, INT32_MAX }, devices[] = { 0, 99 }, twice[] = { -1, 0 };
        expect_refusal("CommInitAll", 0, ncclCommInitAll(made, ONE_OF(counts), NULL));
        expect_refusal("CommInitAll", 0, ncclCommInitAll(made, RANKS, devices));
        expect_refusal("CommInitAll", 0, ncclCommInitAll(made, RANKS, twice));
        expect_refusal("CommInitAll", 0, ncclCommInitAll(NULL, RANKS, NULL));
        break;
    }
    default: {
        ncclComm_t made;
        TRY(COMM, CommSplit, a.comm, 0, 0, &made, NULL);
        int out = (int)ONE_OF(((const int[]){ -1, RANKS, INT32_MAX }));
        TRY(COMM, CommShrink, a.comm, &out, 1, &made, NULL, 0);
        expect_refusal("CommShrink", 0, ncclCommShrink(comms[rank], &out, 1, &made, NULL, 0));
        const int counts[] = { -1, RANKS + 1, INT32_MAX };
        expect_refusal("CommShrink", 0,
                       ncclCommShrink(comms[rank], &out, ONE_OF(counts), &made, NULL, 0));
        expect_refusal("GroupEnd", 0, ncclGroupEnd());
        break;
    }
    }
}

/* A configuration of a random size, of which nothing behind its end can be read. */
static void try_a_configuration(char *end) {
    const size_t sizes[] = { 24, 40, 48, 72, 80, 88, 96, 8 * draw(40) };
    const int blocking[] = { 0, 1, NCCL_CONFIG_UNDEF_INT, (int)draw(1u << 31) };
    size_t size = ONE_OF(sizes);
    const size_t room = size < 24 ? 24 : size;
    char bytes[512];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (char)draw(256);
    const bool has_magic = draw(8) != 0;
    const unsigned magic = 0xcafebeef;
    const int chosen = ONE_OF(blocking);
    if (has_magic) memcpy(bytes + 8, &magic, 4);
    /* Of the version of each size, or of none. */
    memcpy(bytes + 16, &chosen, 4);
    /* A size that is a lie would be the caller's word. */
    memcpy(bytes, &size, sizeof size);
    memcpy(end - room, bytes, room);
    const bool is_right =
        has_magic && size >= 24 && (chosen == 0 || chosen == 1 || chosen == NCCL_CONFIG_UNDEF_INT);
    ncclUniqueId id;
    ncclComm_t made = NULL;
    OK(ncclGetUniqueId(&id));
    CUDA(cuCtxSetCurrent(contexts[0]));
    ncclResult_t result = ncclCommInitRankConfig(&made, 1, id, 0, (ncclConfig_t *)(end - room));
    if (!is_right) {
        EXPECT(result == ncclInvalidArgument, "%zu bytes, %d: %d", size, chosen, result);
        return;
    }
    EXPECT(result == ncclSuccess || result == ncclInProgress, "%zu bytes, %d: %d: %s", size,
           chosen, result, ncclGetLastError(NULL));
    ncclResult_t now = result;
    while (now == ncclInProgress) OK(ncclCommGetAsyncError(made, &now));
    EXPECT(now == ncclSuccess, "%d: %s", now, ncclGetLastError(made));
    OK(ncclCommDestroy(made));
    freed = made;
}

/* The communicators are as good as before. */
static void all_reduce(int number) {
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        for (int i = 0; i < COUNT; i++) host[i] = (float)((i + r * number) % 100);
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuMemcpyHtoD((CUdeviceptr)sends[r], host, BYTES));
        CUDA(cuCtxSynchronize());
        OK(ncclAllReduce(sends[r], receives[r], COUNT, ncclFloat, ncclSum, comms[r],
                         (cudaStream_t)streams[r]));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuStreamSynchronize(streams[r]));
        CUDA(cuMemcpyDtoH(host, (CUdeviceptr)receives[r], BYTES));
        for (int i = 0; i < COUNT; i++) {
            float sum = (float)(i % 100 + (i + number) % 100);
            EXPECT(host[i] == sum, "rank %d, element %d: %g, not %g", r, i, host[i], sum);
        }
    }
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const int calls = atoi(words[2]);
    state = strtoull(words[1], NULL, 10) * 2654435761u + 1;
    printf("seed %s\n", words[1]);
    CUDA(cuInit(0));
    for (int r = 0; r < RANKS; r++) {
        CUDA(cuDevicePrimaryCtxRetain(&contexts[r], r));
        CUDA(cuCtxSetCurrent(contexts[r]));
        CUDA(cuStreamCreate(&streams[r], CU_STREAM_NON_BLOCKING));
        CUdeviceptr send, receive;
        /* All that AllGather and AlltoAll of COUNT elements write. */
        CUDA(cuMemAlloc(&send, BYTES));
        CUDA(cuMemAlloc(&receive, BYTES));
        sends[r] = (void *)send;
        receives[r] = (void *)receive;
    }
    OK(ncclCommInitAll(comms, RANKS, NULL));
    const long page = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUDA(pages == MAP_FAILED);
    CUDA(mprotect(pages + page, page, PROT_NONE));
    try_a_configuration(pages + page);
    for (int i = 0; i < calls; i++) {
        try_a_call();
        if (i % 100 == 99) try_a_configuration(pages + page);
        if (i % 500 == 499) all_reduce(i);
    }
    for (int r = 0; r < RANKS; r++) OK(ncclCommDestroy(comms[r]));
    printf("%d calls, %d wrong\n", calls, wrong);
    return wrong != 0;
}
