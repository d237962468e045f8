/* What test programs share that draw their calls at random. */
#ifndef RINGDOVE_FUZZ_H
#define RINGDOVE_FUZZ_H

#include "expect.h"

#include <stdint.h>

/* What is drawn from: not 0 at the start. */
static uint64_t state;

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

#define OK(call)                                                                 \
    do {                                                                         \
        ncclResult_t result = (call);                                            \
        EXPECT(result == ncclSuccess, "%d: %s", result, ncclGetLastError(NULL)); \
    } while (0)

#endif
