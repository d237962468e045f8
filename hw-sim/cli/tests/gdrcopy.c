/* Device memory of a virtual GPU, mapped by libgdrapi: what the library's documentation promises, and
 * what must not work. */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    if (!(condition)) {                                                                            \
        fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                    \
        exit(1);                                                                                   \
    }
#define SAME(seen, expected)                                                                       \
    do {                                                                                           \
        long long seen_ = (seen), expected_ = (expected);                                          \
        if (seen_ != expected_) {                                                                  \
            fprintf(stderr, "line %d: %s is %lld, expected %lld\n", __LINE__, #seen, seen_,        \
                    expected_);                                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

typedef struct { unsigned long number; } handle;
struct info {
    uint64_t va, mapped_size;
    uint32_t page_size;
    uint64_t cycles;
    uint32_t cycles_per_ms;
    unsigned mapped : 1, wc : 1;
    int type;
};

static void *library, *driver;
static void *name(void *from, const char *wanted) {
    void *found = dlsym(from, wanted);
    if (!found) fprintf(stderr, "no %s\n", wanted), exit(1);
    return found;
}
#define GDR(function, ...) ((int (*)())name(library, "gdr_" #function))(__VA_ARGS__)
#define CUDA(function, ...) SAME(((int (*)())name(driver, "cu" #function))(__VA_ARGS__), 0)

enum { PAGE = 65536 };

int main(int count, char **arguments) {
    int exports = count < 2 || strcmp(arguments[1], "none");
    CHECK(driver = dlopen("libcuda.so.1", RTLD_NOW));
    CHECK(library = dlopen("libgdrapi.so.2", RTLD_NOW));
    CUDA(Init, 0);
    void *context, *none;
    CUDA(DevicePrimaryCtxRetain, &context, 0);
    CUDA(CtxPushCurrent_v2, context);
    uint64_t buffer, other;
    CUDA(MemAlloc_v2, &buffer, (size_t)4 * PAGE);
    CUDA(MemAlloc_v2, &other, (size_t)100);
    CUDA(MemsetD8_v2, buffer, 0xa5, (size_t)4 * PAGE);
    CUDA(CtxSynchronize);
    /* From here on no context is current: the library needs none. */
    CUDA(CtxPopCurrent_v2, &none);
    void *gdr = ((void *(*)(void))name(library, "gdr_open"))();
    CHECK(gdr);
    int major = 0, minor = 0, value = -1;
    ((void (*)(int *, int *))name(library, "gdr_runtime_get_version"))(&major, &minor);
    SAME(major, 2);
    SAME(GDR(driver_get_version, gdr, &major, &minor), 0);
    SAME(GDR(get_attribute, gdr, 3, &value), 0);
    SAME(value, 1);
    SAME(GDR(get_attribute, gdr, 99, &value), EINVAL);

    handle pinned = { 0 }, second = { 0 };
    if (!exports) {
        /* GPUs whose memory is not exported as a dma-buf. */
        SAME(GDR(pin_buffer, gdr, buffer, (size_t)4 * PAGE, (uint64_t)0, 0, &pinned), EINVAL);
        SAME(GDR(close, gdr), 0);
        puts("done");
        return 0;
    }
    SAME(GDR(pin_buffer, gdr, buffer, (size_t)4 * PAGE, (uint64_t)0, 0, &pinned), 0);
    SAME(GDR(pin_buffer_v2, gdr, buffer, (size_t)PAGE, 0, &second), 0);
    CHECK(pinned.number && pinned.number != second.number);
    struct info info;
    SAME(GDR(get_info_v2, gdr, pinned, &info), 0);
    SAME(info.va, buffer);
    SAME(info.mapped_size, 4 * PAGE);
    SAME(info.page_size, PAGE);
    SAME(info.mapped, 0);
    uint8_t *mapped = NULL, *again = NULL;
    SAME(GDR(map, gdr, pinned, &mapped, (size_t)4 * PAGE), 0);
    SAME(GDR(map_v2, gdr, second, &again, (size_t)PAGE, 1), 0);
    SAME(GDR(get_info_v2, gdr, pinned, &info), 0);
    CHECK(info.mapped && info.wc && info.type == 1);
    SAME(GDR(map, gdr, pinned, &again, (size_t)PAGE), EAGAIN);
    /* It is the GPU's own memory, seen both ways and through both mappings. */
    SAME(mapped[0], 0xa5);
    SAME(mapped[4 * PAGE - 1], 0xa5);
    uint8_t bytes[4096], back[4096];
    for (unsigned i = 0; i < sizeof bytes; i++) bytes[i] = i * 7;
    for (size_t size = 1; size <= sizeof bytes; size = size < 70 ? size + 1 : size * 2) {
        for (size_t shift = 0; shift < 9; shift += 4) {
            if (size + shift > sizeof bytes) continue;
            SAME(GDR(copy_to_mapping, pinned, mapped + 128 + shift, bytes + shift, size), 0);
            CUDA(CtxPushCurrent_v2, context);
            CUDA(MemcpyDtoH_v2, back, buffer + 128 + shift, size);
            CUDA(CtxPopCurrent_v2, &none);
            SAME(memcmp(back, bytes + shift, size), 0);
            memset(back, 0, sizeof back);
            SAME(GDR(copy_from_mapping, second, back, again + 128 + shift, size), 0);
            SAME(memcmp(back, bytes + shift, size), 0);
            CHECK(size == sizeof back || back[size] == 0);
        }
    }
    /* Outside of the mapping, and with a wrong handle. */
    SAME(GDR(copy_to_mapping, pinned, mapped + 4 * PAGE - 4, bytes, (size_t)8), EINVAL);
    SAME(GDR(copy_to_mapping, second, mapped, bytes, (size_t)8), EINVAL);
    SAME(GDR(copy_from_mapping, pinned, bytes, mapped - 1, (size_t)8), EINVAL);
    SAME(GDR(copy_to_mapping, (handle){ 999 }, mapped, bytes, (size_t)8), EINVAL);
    SAME(GDR(copy_to_mapping, pinned, mapped, NULL, (size_t)8), EINVAL);
    /* What cannot be pinned or mapped. */
    handle bad = { 0 };
    SAME(GDR(pin_buffer, gdr, (unsigned long)0x1000, (size_t)PAGE, (uint64_t)0, 0, &bad), EINVAL);
    SAME(GDR(pin_buffer, gdr, buffer, (size_t)5 * PAGE, (uint64_t)0, 0, &bad), EINVAL);
    SAME(GDR(pin_buffer, gdr, buffer, (size_t)-1, (uint64_t)0, 0, &bad), EINVAL);
    SAME(GDR(pin_buffer, gdr, buffer, (size_t)0, (uint64_t)0, 0, &bad), EINVAL);
    SAME(GDR(pin_buffer_v2, gdr, buffer, (size_t)PAGE, 1, &bad), EINVAL);
    SAME(GDR(pin_buffer, gdr, (unsigned long)bytes, (size_t)64, (uint64_t)0, 0, &bad), EINVAL);
    SAME(GDR(pin_buffer, gdr, buffer + 4096, (size_t)PAGE, (uint64_t)0, 0, &bad), 0);
    SAME(GDR(map, gdr, bad, &again, (size_t)PAGE), EINVAL); /* no page of the GPU begins there */
    SAME(GDR(unpin_buffer, gdr, bad), 0);
    SAME(GDR(unpin_buffer, gdr, bad), EINVAL);
    SAME(GDR(map_v2, gdr, second, &again, (size_t)PAGE, 7), EINVAL);
    /* A small allocation is pinned by whole pages, as programs do. */
    SAME(GDR(pin_buffer, gdr, other & ~(uint64_t)(PAGE - 1), (size_t)PAGE, (uint64_t)0, 0, &bad),
         other % PAGE ? EINVAL : 0);
    /* Freed memory stays as long as it is mapped; no context is needed to free it. */
    CUDA(MemFree_v2, buffer);
    mapped[5] = 9;
    SAME(mapped[5], 9);
    int flag = -1;
    SAME(GDR(get_callback_flag, gdr, pinned, &flag), 0);
    SAME(flag, 0);
    SAME(GDR(unmap, gdr, pinned, mapped + 4096, (size_t)4 * PAGE), EINVAL);
    SAME(GDR(unmap, gdr, pinned, mapped, (size_t)4 * PAGE), 0);
    SAME(GDR(unmap, gdr, pinned, mapped, (size_t)4 * PAGE), EINVAL);
    SAME(GDR(unpin_buffer, gdr, pinned), 0);
    SAME(GDR(close, gdr), 0); /* with what is still mapped */
    SAME(GDR(close, gdr), EINVAL);
    SAME(GDR(pin_buffer, gdr, other, (size_t)64, (uint64_t)0, 0, &bad), EINVAL);
    puts("done");
    return 0;
}
