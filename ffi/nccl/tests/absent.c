/* Functions of features that ringdove does not have: what they check, and what they answer. */
#include "nccl.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 2, COUNT = 1000 };

static int wrong;
static ncclComm_t comms[RANKS];
static CUcontext contexts[RANKS];
static CUdeviceptr buffers[RANKS];

#define EXPECT(what)                                                                         \
    do {                                                                                     \
        if (!(what)) {                                                                       \
            wrong++;                                                                         \
            printf("line %d: %s: %s\n", __LINE__, #what, ncclGetLastError(NULL));            \
        }                                                                                    \
    } while (0)
#define REFUSED(status, word, call) \
    EXPECT((call) == (status) && strstr(ncclGetLastError(NULL), word))

static void properties(void) {
    for (int r = 0; r < RANKS; r++) {
        ncclCommProperties_t seen = NCCL_COMM_PROPERTIES_INITIALIZER;
        seen.nLsaTeams = seen.nvmlDev = -7;
        seen.hostRmaSupport = seen.deviceApiSupport = true;
        EXPECT(ncclCommQueryProperties(comms[r], &seen) == ncclSuccess);
        EXPECT(seen.rank == r && seen.nRanks == RANKS && seen.cudaDev == r);
        /* CUDA_VISIBLE_DEVICES hides the first GPU of four. */
        EXPECT(seen.nvmlDev == r + 1);
        EXPECT(!seen.deviceApiSupport && !seen.multimemSupport && !seen.hostRmaSupport);
        EXPECT(seen.ginType == NCCL_GIN_TYPE_NONE && seen.railedGinType == NCCL_GIN_TYPE_NONE);
        EXPECT(seen.nLsaTeams == RANKS);
        EXPECT(seen.size == sizeof seen && seen.version == NCCL_VERSION_CODE);
    }
    /* A program of 2.29.2 has a shorter structure, and something else behind it. */
    ncclCommProperties_t older = NCCL_COMM_PROPERTIES_INITIALIZER;
    older.size = offsetof(ncclCommProperties_t, nLsaTeams);
    older.nLsaTeams = 77;
    EXPECT(ncclCommQueryProperties(comms[1], &older) == ncclSuccess);
    EXPECT(older.rank == 1 && older.nLsaTeams == 77);
    older.size--;
    REFUSED(ncclInvalidUsage, "props", ncclCommQueryProperties(comms[0], &older));
    memset(&older, 0, sizeof older);
    REFUSED(ncclInvalidUsage, "props", ncclCommQueryProperties(comms[0], &older));
    REFUSED(ncclInvalidArgument, "props", ncclCommQueryProperties(comms[0], NULL));
    REFUSED(ncclInvalidArgument, "comm", ncclCommQueryProperties(NULL, &older));
}

static void suspension(void) {
    uint64_t bytes = 1;
    EXPECT(ncclCommMemStats(comms[0], ncclStatGpuMemSuspend, &bytes) == ncclSuccess && bytes == 0);
    EXPECT(ncclCommSuspend(comms[0], 0) == ncclSuccess);
    REFUSED(ncclInvalidUsage, "suspended", ncclCommSuspend(comms[0], NCCL_SUSPEND_MEM));
    REFUSED(ncclInvalidUsage, "suspended", ncclCommResume(comms[0]));
    REFUSED(ncclInvalidArgument, "comm", ncclCommSuspend(NULL, 0));
    REFUSED(ncclInvalidArgument, "comm", ncclCommResume(NULL));
}

static void one_sided(void) {
    ncclWaitSignalDesc_t one = {1, 1, 0, 0};
    REFUSED(ncclInvalidArgument, "hostRmaSupport",
            ncclPutSignal((void *)buffers[0], 1, ncclFloat, 1, NULL, 0, 0, 0, 0, comms[0], NULL));
    REFUSED(ncclInvalidArgument, "hostRmaSupport", ncclSignal(1, 0, 0, 0, comms[0], NULL));
    REFUSED(ncclInvalidArgument, "hostRmaSupport", ncclWaitSignal(1, &one, comms[0], NULL));
    REFUSED(ncclInvalidArgument, "comm: expected a communicator",
            ncclSignal(1, 0, 0, 0, NULL, NULL));
    EXPECT(ncclGroupStart() == ncclSuccess);
    REFUSED(ncclInvalidArgument, "hostRmaSupport", ncclSignal(1, 0, 0, 0, comms[0], NULL));
    REFUSED(ncclInvalidArgument, "hostRmaSupport", ncclGroupEnd());
}

static void put(float value) {
    for (int r = 0; r < RANKS; r++) {
        unsigned word;
        memcpy(&word, &value, sizeof word);
        EXPECT(cuCtxSetCurrent(contexts[r]) == 0 && cuMemsetD32(buffers[r], word, COUNT) == 0);
        EXPECT(cuCtxSynchronize() == 0);
    }
}

static int has(float value) {
    static float host[COUNT];
    for (int r = 0; r < RANKS; r++) {
        EXPECT(cuCtxSetCurrent(contexts[r]) == 0 && cuCtxSynchronize() == 0);
        EXPECT(cuMemcpyDtoH(host, buffers[r], sizeof host) == 0);
        for (int i = 0; i < COUNT; i++)
            if (host[i] != value) return 0;
    }
    return 1;
}

static void collected(void) {
    EXPECT(ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        void *buffer = (void *)buffers[r];
        EXPECT(ncclAllReduce(buffer, buffer, COUNT, ncclFloat, ncclSum, comms[r], NULL) ==
               ncclSuccess);
    }
}

static void simulation(void) {
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    put(3);
    collected();
    info.estimatedTime = 5;
    EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess);
    EXPECT(info.estimatedTime == NCCL_UNDEF_FLOAT && has(3));
    /* The end of a group in another one decides nothing. */
    collected();
    EXPECT(ncclGroupStart() == ncclSuccess);
    EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess);
    EXPECT(ncclGroupEnd() == ncclSuccess && has(6));
    /* Refused, and nothing happens. */
    collected();
    info.magic = 0;
    REFUSED(ncclInvalidArgument, "simInfo", ncclGroupSimulateEnd(&info));
    EXPECT(has(6));
    REFUSED(ncclInvalidUsage, "ncclGroupStart", ncclGroupSimulateEnd(&info));
    /* Without a place for the time, it is an end like any other. */
    collected();
    EXPECT(ncclGroupSimulateEnd(NULL) == ncclSuccess && has(12));
    /* Communicators of a simulated group are made. */
    ncclUniqueId id;
    ncclComm_t more[RANKS] = {NULL, NULL};
    ncclSimInfo_t again = NCCL_SIM_INFO_INITIALIZER;
    EXPECT(ncclGetUniqueId(&id) == ncclSuccess && ncclGroupStart() == ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(cuCtxSetCurrent(contexts[r]) == 0);
        EXPECT(ncclCommInitRank(&more[r], RANKS, id, r) == ncclSuccess);
    }
    EXPECT(ncclGroupSimulateEnd(&again) == ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        int rank = -1;
        EXPECT(ncclCommUserRank(more[r], &rank) == ncclSuccess && rank == r);
        EXPECT(ncclCommDestroy(more[r]) == ncclSuccess);
    }
}

int main(void) {
    EXPECT(cuInit(0) == 0);
    for (int r = 0; r < RANKS; r++) {
        EXPECT(cuDevicePrimaryCtxRetain(&contexts[r], r) == 0 && cuCtxSetCurrent(contexts[r]) == 0);
        EXPECT(cuMemAlloc(&buffers[r], COUNT * sizeof(float)) == 0);
    }
    EXPECT(ncclCommInitAll(comms, RANKS, NULL) == ncclSuccess);
    properties();
    suspension();
    one_sided();
    simulation();
    /* None of it has hurt the communicators. */
    for (int r = 0; r < RANKS; r++) {
        ncclResult_t state = ncclInternalError;
        EXPECT(ncclCommGetAsyncError(comms[r], &state) == ncclSuccess && state == ncclSuccess);
    }
    for (int r = 0; r < RANKS; r++) EXPECT(ncclCommDestroy(comms[r]) == ncclSuccess);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
