/* Links weakly, as programs do that also run with an older NCCL, with a fallback of its own for one
 * function; and finds the functions that are named by dlsym, as Python does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int ncclGetVersion(int *version) __attribute__((weak));
int ncclDevCommCreate(void) __attribute__((weak));
int ncclOfNoVersion(void) __attribute__((weak));
/* Strong: a linker leaves out a library that is asked for weakly alone. */
const char *ncclGetErrorString(int result);
__attribute__((weak)) const char *ncclGetLastError(void *comm) {
    (void)comm;
    return "fallback";
}

int main(int argc, char **argv) {
    int version = 0, missing = 0;
    if (!ncclGetVersion || ncclGetVersion(&version) != 0 || version < 21400) return 1;
    /* It is there, and refuses. */
    if (!ncclGetErrorString(5)[0] || !ncclDevCommCreate || ncclDevCommCreate() != 5) return 2;
    if (ncclOfNoVersion) return 3;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return 4;
    for (int i = 1; i < argc; i++) {
        char name[128];
        snprintf(name, sizeof name, "p%s", argv[i]);
        if (dlsym(library, argv[i]) && dlsym(library, name)) continue;
        printf("%s is missing\n", argv[i]);
        missing++;
    }
    return missing ? 5 : 0;
}
