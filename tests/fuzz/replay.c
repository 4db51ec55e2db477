/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c: gives a fuzz target its saved corpus, every prefix of small inputs, seeded mutations
 * and random bytes, without libFuzzer. Deterministic, a few seconds; the search for new inputs is
 * libFuzzer's work (tools/test --fuzz).
 *
 * usage: fuzz_x CORPUS_DIR   (a folder that does not exist is an empty corpus)
 */
#include "core/mem.h"
#include "core/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES_MAX    (1u << 20)
#define MUTATIONS_PER_FILE 400
#define RANDOM_INPUTS      4000
#define PREFIXES_MAX       512

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static long runs;

/* The input is copied to memory of exactly its size, so that a sanitizer sees reads beyond it. */
static void run(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact == NULL)
        abort();
    if (size > 0)
        memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    runs++;
}

static size_t mutate(struct hth_rng *rng, uint8_t *data, size_t size)
{
    size_t edits = 1 + hth_rng_below(rng, 6);
    for (size_t i = 0; i < edits && size > 0; i++) {
        size_t at = hth_rng_below(rng, size);
        switch (hth_rng_below(rng, 5)) {
        case 0:
            data[at] ^= (uint8_t)(1u << hth_rng_below(rng, 8));
            break;
        case 1:
            data[at] = (uint8_t)hth_rng_u64(rng);
            break;
        case 2:
            memset(data + at, hth_rng_chance(rng, 0.5) ? 0xff : 0, HTH_MIN((size_t)8, size - at));
            break;
        case 3:
            size = at;
            break;
        default:
            memmove(data + at, data + at / 2, HTH_MIN((size_t)16, size - at));
            break;
        }
    }
    return size;
}

static void run_file(const char *path, struct hth_rng *rng)
{
    static uint8_t data[INPUT_BYTES_MAX], work[INPUT_BYTES_MAX];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return;
    size_t size = fread(data, 1, sizeof(data), file);
    fclose(file);
    run(data, size);
    for (size_t len = 0; len < size && len < PREFIXES_MAX; len++)
        run(data, len);
    for (int i = 0; i < MUTATIONS_PER_FILE; i++) {
        memcpy(work, data, size);
        run(work, mutate(rng, work, size));
    }
}

int main(int argc, char **argv)
{
    struct hth_rng rng;
    struct dirent **names = NULL;
    hth_rng_init(&rng, 1);
    int count = argc > 1 ? scandir(argv[1], &names, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        char *path = hth_asprintf("%s/%s", argv[1], names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            run_file(path, &rng);
        hth_free(path);
        free(names[i]);
    }
    free(names);
    for (int i = 0; i < RANDOM_INPUTS; i++) {
        uint8_t data[512];
        size_t size = hth_rng_below(&rng, sizeof(data));
        for (size_t j = 0; j < size; j++)
            data[j] = (uint8_t)hth_rng_u64(&rng);
        run(data, size);
    }
    printf("%ld inputs, no crash\n", runs);
    return 0;
}
