// All-reduce of floats by MPI: a line `RANKS BYTES MICROSECONDS` for each size, the better of
// out-of-place and in-place. Every element of the last round is checked.
//
//   all_reduce ITERATIONS BYTES...

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static float value(size_t index, int of_rank) { return (float)((index + of_rank) % 7); }

static void fill(float *data, size_t count) {
    for (size_t i = 0; i < count; i++) data[i] = value(i, rank);
}

static void check(const float *sums, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int other = 0; other < ranks; other++) want += value(i, other);
        if (sums[i] != want) {
            fprintf(stderr, "rank %d: element %zu is %f, not %f\n", rank, i, sums[i], want);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

// Seconds of one call, the mean of `rounds`.
static double timed(const void *from, float *into, size_t count, int rounds) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < rounds; i++)
        MPI_Allreduce(from, into, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return (MPI_Wtime() - start) / rounds;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int rounds = atoi(argv[1]);
    for (int size = 2; size < argc; size++) {
        size_t bytes = strtoull(argv[size], NULL, 10), count = bytes / sizeof(float);
        float *from = malloc(bytes), *into = malloc(bytes);
        fill(from, count);
        timed(from, into, count, 2);
        double apart = timed(from, into, count, rounds);
        check(into, count);
        timed(MPI_IN_PLACE, into, count, 2);
        double within = timed(MPI_IN_PLACE, into, count, rounds);
        fill(into, count);
        timed(MPI_IN_PLACE, into, count, 1);
        check(into, count);
        double best = apart < within ? apart : within;
        if (rank == 0) printf("%d %zu %.3f\n", ranks, bytes, best * 1e6);
        free(from);
        free(into);
    }
    MPI_Finalize();
}
