/* Collectives and one-sided operations of MPI, of small and large messages, with answers that are
 * known beforehand. Memory of windows is the program's own: with MPICH 4.0.2, puts into memory of
 * MPI_Win_allocate go to wrong places, without virtual hardware too. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, __VA_ARGS__);                                                              \
        MPI_Abort(MPI_COMM_WORLD, 1);                                                              \
    } while (0)

static int rank, ranks;

static void all_reduce(int count) {
    double *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *out);
    for (int i = 0; i < count; i++)
        in[i] = (rank + 1) * (i % 1000);
    MPI_Allreduce(in, out, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < count; i++)
        if (out[i] != ranks * (ranks + 1) / 2 * (double)(i % 1000))
            FAIL("all-reduce of %d: [%d] is %g\n", count, i, out[i]);
    free(in);
    free(out);
}

static void all_to_all(int count) {
    int *in = malloc(ranks * count * sizeof *in), *out = malloc(ranks * count * sizeof *out);
    for (int i = 0; i < ranks * count; i++)
        in[i] = rank * 1000000 + i;
    MPI_Alltoall(in, count, MPI_INT, out, count, MPI_INT, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < count; i++)
            if (out[from * count + i] != from * 1000000 + rank * count + i)
                FAIL("all-to-all of %d\n", count);
    free(in);
    free(out);
}

static void one_sided(int count) {
    long *memory;
    MPI_Win win;
    memory = calloc((ranks + 1) * count, sizeof *memory);
    MPI_Win_create(memory, (ranks + 1) * count * sizeof *memory, sizeof *memory, MPI_INFO_NULL,
                   MPI_COMM_WORLD, &win);
    long *mine = malloc(count * sizeof *mine), *got = calloc(count, sizeof *got);
    for (int i = 0; i < count; i++)
        mine[i] = rank * 10000L + i;
    MPI_Win_fence(0, win);
    for (int to = 0; to < ranks; to++) {
        MPI_Put(mine, count, MPI_LONG, to, rank * count, count, MPI_LONG, win);
        MPI_Accumulate(mine, count, MPI_LONG, to, ranks * count, count, MPI_LONG, MPI_SUM, win);
    }
    MPI_Win_fence(0, win);
    for (int from = 0; from < ranks; from++)
        for (int i = 0; i < count; i++)
            if (memory[from * count + i] != from * 10000L + i)
                FAIL("put of %d: rank %d from %d [%d] is %ld\n", count, rank, from, i,
                     memory[from * count + i]);
    for (int i = 0; i < count; i++)
        if (memory[ranks * count + i] != ranks * (ranks - 1) / 2 * 10000L + (long)ranks * i)
            FAIL("accumulate of %d\n", count);
    MPI_Win_fence(0, win);
    MPI_Get(got, count, MPI_LONG, (rank + 1) % ranks, 0, count, MPI_LONG, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < count; i++)
        if (got[i] != i)
            FAIL("get of %d\n", count);
    long one = 1, old = -1;
    MPI_Win_lock_all(0, win);
    MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, ranks * count, MPI_SUM, win);
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        if (memory[ranks * count] != ranks * (ranks - 1) / 2 * 10000L + ranks)
            FAIL("fetch and op: %ld\n", memory[ranks * count]);
        MPI_Win_unlock(0, win);
    }
    if (old < ranks * (ranks - 1) / 2 * 10000L || old >= ranks * (ranks - 1) / 2 * 10000L + ranks)
        FAIL("fetch and op has fetched %ld\n", old);
    MPI_Win_free(&win);
    free(mine);
    free(got);
    free(memory);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* In the middle of it all. */
    int killed = getenv("KILLED") ? atoi(getenv("KILLED")) : -1;
    for (int count = 1; count <= 1 << 18; count *= 8) {
        if (count > 4096 && rank == killed)
            raise(SIGKILL);
        all_reduce(count);
        all_to_all(count / 4 + 1);
        if (count <= 1 << 15)
            one_sided(count);
    }
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    if (!rank)
        printf("right on %d ranks: %.24s\n", ranks, version);
    MPI_Finalize();
    return 0;
}
