/* Exports device memory as any CUDA program may: an allocation of each size that is named, its
 * handle in hexadecimal on a line of its own. The memory stays until standard input ends. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { unsigned char bytes[64]; } Handle;

static void *driver;

static void *function(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(2);
    }
    return found;
}

static void check(const char *call, int code) {
    if (code) {
        fprintf(stderr, "%s: %d\n", call, code);
        exit(2);
    }
}

int main(int count, char **arguments) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    int (*init)(unsigned) = function("cuInit");
    int (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = function("cuCtxSetCurrent");
    int (*allocate)(uint64_t *, size_t) = function("cuMemAlloc_v2");
    int (*export)(Handle *, uint64_t) = function("cuIpcGetMemHandle");
    void *context;
    check("cuInit", init(0));
    check("cuDevicePrimaryCtxRetain", retain(&context, 0));
    check("cuCtxSetCurrent", set_current(context));
    for (int index = 1; index < count; index++) {
        uint64_t address;
        Handle handle;
        check("cuMemAlloc", allocate(&address, strtoull(arguments[index], NULL, 10)));
        check("cuIpcGetMemHandle", export(&handle, address));
        for (int at = 0; at < 64; at++)
            printf("%02x", handle.bytes[at]);
        putchar('\n');
    }
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
