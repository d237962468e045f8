/* One rank of a job whose ranks are processes, on one node or several: the rank and the number of
 * ranks come from the environment, the id through the file that is named; without a file, every rank
 * makes it, as NCCL_COMM_ID says. Sums, and a ring. */
#include "nccl.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 70000 };
static float host[COUNT];

#define NEED(condition)                                                                    \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            printf("rank %d: %s: %s\n", rank, #condition, ncclGetLastError(NULL));         \
            return 1;                                                                      \
        }                                                                                  \
    } while (0)

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

int main(int argc, char **argv) {
    int rank = number("RANK"), ranks = number("WORLD_SIZE");
    ncclUniqueId id;
    /* The name appears when the file is whole. */
    if (argc == 1) {
        NEED(ncclGetUniqueId(&id) == ncclSuccess);
    } else if (rank == 0) {
        char draft[4096];
        snprintf(draft, sizeof draft, "%s.draft", argv[1]);
        NEED(ncclGetUniqueId(&id) == ncclSuccess);
        FILE *file = fopen(draft, "wb");
        NEED(file && fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
        NEED(rename(draft, argv[1]) == 0);
    } else {
        FILE *file = NULL;
        for (int i = 0; i < 6000 && !(file = fopen(argv[1], "rb")); i++) usleep(10000);
        NEED(file && fread(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
    }
    CUcontext context;
    ncclComm_t comm;
    cudaStream_t stream;
    CUdeviceptr send, receive;
    NEED(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, number("LOCAL_RANK")) == 0);
    NEED(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&stream, 1) == 0);
    NEED(cuMemAlloc(&send, sizeof host) == 0 && cuMemAlloc(&receive, sizeof host) == 0);
    NEED(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);

    for (int i = 0; i < COUNT; i++) host[i] = (float)(rank + i % 10);
    /* The driver may have taken the bytes, and not yet put them where other streams see them. */
    NEED(cuMemcpyHtoD(send, host, sizeof host) == 0 && cuCtxSynchronize() == 0);
    void *in = (void *)(uintptr_t)send, *out = (void *)(uintptr_t)receive;
    NEED(ncclAllReduce(in, out, COUNT, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    NEED(cuStreamSynchronize(stream) == 0 && cuMemcpyDtoH(host, receive, sizeof host) == 0);
    for (int i = 0; i < COUNT; i++) NEED(host[i] == (float)(ranks * (ranks - 1) / 2 + ranks * (i % 10)));

    NEED(ncclGroupStart() == ncclSuccess);
    NEED(ncclSend(in, COUNT, ncclFloat, (rank + 1) % ranks, comm, stream) == ncclSuccess);
    int left = (rank + ranks - 1) % ranks;
    NEED(ncclRecv(out, COUNT, ncclFloat, left, comm, stream) == ncclSuccess);
    NEED(ncclGroupEnd() == ncclSuccess);
    NEED(cuStreamSynchronize(stream) == 0 && cuMemcpyDtoH(host, receive, sizeof host) == 0);
    for (int i = 0; i < COUNT; i++) NEED(host[i] == (float)(left + i % 10));

    /* Each rank with the one two further, or before. */
    ncclComm_t pair;
    NEED(ncclCommSplit(comm, rank % 2, -rank, &pair, NULL) == ncclSuccess);
    NEED(ncclAllGather(in, out, COUNT / 2, ncclFloat, pair, stream) == ncclSuccess);
    NEED(cuStreamSynchronize(stream) == 0 && cuMemcpyDtoH(host, receive, sizeof host) == 0);
    NEED(host[0] == (float)(ranks - 2 + rank % 2) && host[COUNT / 2] == (float)(rank % 2));
    NEED(ncclCommDestroy(pair) == ncclSuccess);

    NEED(ncclCommFinalize(comm) == ncclSuccess && ncclCommDestroy(comm) == ncclSuccess);
    if (argc == 1) {
        /* The place serves one job after the other. */
        NEED(ncclCommInitRank(&comm, ranks, id, rank) == ncclSuccess);
        NEED(ncclCommDestroy(comm) == ncclSuccess);
    }
    printf("rank %d of %d: right\n", rank, ranks);
    return 0;
}
