/* A program that resets its devices below communicators, as cudaDeviceReset does: it must not crash.
 * With `leave` it ends at once, as programs do that never destroy a communicator. */
#include "nccl.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 2, COUNT = 100000 };

#define OK(call)                                                                         \
    do {                                                                                 \
        int result = (call);                                                             \
        if (result != 0) {                                                               \
            printf("%s: %d, %s\n", #call, result, ncclGetLastError(NULL));               \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

int main(int argc, char **argv) {
    ncclComm_t comms[RANKS];
    CUcontext contexts[RANKS];
    CUdeviceptr buffers[RANKS];
    OK(cuInit(0));
    for (int r = 0; r < RANKS; r++) {
        OK(cuDevicePrimaryCtxRetain(&contexts[r], r));
        OK(cuCtxSetCurrent(contexts[r]));
        OK(cuMemAlloc(&buffers[r], COUNT * sizeof(float)));
    }
    OK(ncclCommInitAll(comms, RANKS, NULL));
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        float *buffer = (float *)buffers[r];
        OK(ncclAllReduce(buffer, buffer, COUNT, ncclFloat, ncclSum, comms[r], NULL));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        OK(cuCtxSetCurrent(contexts[r]));
        OK(cuCtxSynchronize());
    }
    for (int r = 0; r < RANKS; r++) OK(cuDevicePrimaryCtxReset(r));
    if (argc > 1 && strcmp(argv[1], "leave") == 0) return 0;

    float *buffer = (float *)buffers[0];
    if (ncclAllReduce(buffer, buffer, COUNT, ncclFloat, ncclSum, comms[0], NULL) == ncclSuccess) {
        printf("an all-reduce on a device that was reset is refused\n");
        return 1;
    }
    /* Whatever they return: the handles are gone. */
    for (int r = 0; r < RANKS; r++) ncclCommAbort(comms[r]);
    return 0;
}
