/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_allreduce.c: OpenMPI's side of `hearth bench allreduce`: sums float vectors ROUNDS times,
 * after one sum that is not counted, and prints the mean time of the slowest rank. Built only if
 * mpicc is found.
 *
 *     mpirun --mca btl tcp,self -n 4 bench_mpi_allreduce BYTES ROUNDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, n;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    size_t count = argc > 1 ? (size_t)strtoull(argv[1], NULL, 10) / sizeof(float) : 1024;
    int rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 3;
    float *in = malloc(count * sizeof(float)), *out = malloc(count * sizeof(float));
    if (in == NULL || out == NULL || rounds < 1)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < count; i++)
        in[i] = (float)((i * 2654435761u + (unsigned)rank) % 1000) / 1000.0f;
    MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < rounds; i++)
        MPI_Allreduce(in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double mine = (MPI_Wtime() - start) / rounds, slowest;
    MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("seconds %.9f\n", slowest);
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
