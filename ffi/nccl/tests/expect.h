/* What the test programs in C share: things that are not as they should be are printed and counted. */
#ifndef RINGDOVE_EXPECT_H
#define RINGDOVE_EXPECT_H

#include <stdio.h>

static int wrong = 0;

#define EXPECT(condition, ...)                             \
    do {                                                   \
        if (!(condition) && wrong++ < 40) {                \
            printf("line %d: %s: ", __LINE__, #condition); \
            printf(__VA_ARGS__);                           \
            printf("\n");                                  \
        }                                                  \
    } while (0)
#define CUDA(call) EXPECT((call) == 0, "the driver refuses it")

#endif
