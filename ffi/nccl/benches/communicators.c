/* What communicators of all visible GPUs cost a program, `ncclCommInitAll` to `ncclCommDestroy`:
 * one row of a table. Each of the rounds makes them anew; the first one also meets everything that
 * a process does once. */
#include "nccl.h"

#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICES_MAX = 64, ROUNDS = 9, COUNT = 2048 };

#define NEED(condition)                                                                    \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s: %s\n", #condition, ncclGetLastError(NULL));               \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* A line of /proc/self/status, in bytes. */
static double process_bytes(const char *field) {
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    NEED(file);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) kib = atof(line + strlen(field));
    fclose(file);
    return kib * 1024;
}

/* Bytes of the current device that are taken. */
static double device_bytes(void) {
    size_t available, total;
    NEED(cuMemGetInfo(&available, &total) == 0);
    return (double)(total - available);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(void) {
    static CUcontext contexts[DEVICES_MAX];
    static CUstream streams[DEVICES_MAX];
    static CUdeviceptr buffers[DEVICES_MAX];
    static ncclComm_t comms[DEVICES_MAX];
    double made[ROUNDS], summed[ROUNDS], ended[ROUNDS], device = 0, host = 0;
    int devices = 0;
    NEED(cuInit(0) == 0 && cuDeviceGetCount(&devices) == 0 && devices <= DEVICES_MAX);
    for (int i = 0; i < devices; i++) {
        NEED(cuDevicePrimaryCtxRetain(&contexts[i], i) == 0 && cuCtxSetCurrent(contexts[i]) == 0);
        NEED(cuStreamCreate(&streams[i], 1) == 0);
        NEED(cuMemAlloc(&buffers[i], COUNT * sizeof(float)) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        NEED(cuCtxSetCurrent(contexts[0]) == 0);
        double device_before = device_bytes(), host_before = process_bytes("VmRSS:");
        double began = now_ms();
        NEED(ncclCommInitAll(comms, devices, NULL) == ncclSuccess);
        made[round] = now_ms() - began;
        NEED(ncclGroupStart() == ncclSuccess);
        for (int i = 0; i < devices; i++) {
            void *data = (void *)(uintptr_t)buffers[i];
            NEED(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comms[i],
                               (cudaStream_t)streams[i]) == ncclSuccess);
        }
        NEED(ncclGroupEnd() == ncclSuccess);
        for (int i = 0; i < devices; i++) {
            NEED(cuCtxSetCurrent(contexts[i]) == 0 && cuStreamSynchronize(streams[i]) == 0);
        }
        summed[round] = now_ms() - began;
        NEED(cuCtxSetCurrent(contexts[0]) == 0);
        device = device_bytes() - device_before;
        if (round == 0) host = process_bytes("VmRSS:") - host_before;
        began = now_ms();
        for (int i = 0; i < devices; i++) NEED(ncclCommDestroy(comms[i]) == ncclSuccess);
        ended[round] = now_ms() - began;
    }
    double first = made[0], first_sum = summed[0];
    qsort(made, ROUNDS, sizeof *made, ascending);
    qsort(summed, ROUNDS, sizeof *summed, ascending);
    qsort(ended, ROUNDS, sizeof *ended, ascending);
    printf("| %d | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f ms | %.1f MiB | %.1f MiB |\n", devices,
           first, first_sum, made[ROUNDS / 2], summed[ROUNDS / 2], ended[ROUNDS / 2],
           device / (1 << 20), host / devices / (1 << 20));
    return 0;
}
