// Preloaded before a program that has NVRTC compile for the GPU at hand and loads the machine code.
// NVRTC keeps the PTX that the machine code is made from: the program gets that instead, which is
// what virtual GPUs run.

#include <stddef.h>

int nvrtcGetPTXSize(void *program, size_t *bytes);
int nvrtcGetPTX(void *program, char *text);

int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    return nvrtcGetPTXSize(program, bytes);
}

int nvrtcGetCUBIN(void *program, char *code) {
    return nvrtcGetPTX(program, code);
}
