/* SPDX-License-Identifier: Apache-2.0 */
/* torch.c: runs PyTorch in a child process. */
#include "benchmarks/torch.h"

#include "benchmarks/child.h"
#include "benchmarks/peers.h"
#include "cli/shipped.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* PyTorch takes seconds to start, and seconds for a run of the largest case. */
#define ANSWER_US (180 * HTH_US_PER_S)

struct hth_bench_torch {
    struct hth_bench_child child;
};

static bool ask(struct hth_bench_torch *t, const char *question, char *answer, size_t size)
{
    return hth_bench_child_say(&t->child, question) &&
           hth_bench_child_hear(&t->child, answer, size, ANSWER_US);
}

static struct hth_bench_torch *try_open(const char *python, char why[160])
{
    struct hth_bench_torch *t = hth_new(struct hth_bench_torch);
    char line[128], *script = hth_shipped_find("benchmarks/torch_ffn.py");
    const char *const argv[] = {python, script, NULL};
    (void)hth_bench_child_start(&t->child, argv, "/dev/null"); /* a failure shows on reading */
    bool ready = hth_bench_child_hear(&t->child, line, sizeof(line), ANSWER_US) &&
                 strncmp(line, "ready ", 6) == 0;
    if (ready)
        snprintf(why, 160, "PyTorch %s under %s", line + 6, python);
    else
        snprintf(why, 160, "no PyTorch under %s: %s%s", python,
                 line[0] != '\0' ? line : "it does not start ", line[0] != '\0' ? "" : script);
    hth_free(script);
    if (ready)
        return t;
    hth_bench_torch_close(t);
    return NULL;
}

struct hth_bench_torch *hth_bench_torch_open(const char *python, char why[160])
{
    if (python != NULL)
        return try_open(python, why);
    char *peers = hth_bench_peers_made();
    struct hth_bench_torch *t = peers != NULL ? try_open(peers, why) : NULL;
    hth_free(peers);
    if (t == NULL)
        t = try_open("python3", why);
    return t != NULL ? t : try_open("/usr/bin/python3", why);
}

void hth_bench_torch_close(struct hth_bench_torch *t)
{
    if (t == NULL)
        return;
    hth_bench_child_end(&t->child);
    hth_free(t);
}

bool hth_bench_torch_case(struct hth_bench_torch *t, const char *op, const char *type,
                          uint64_t width, uint32_t rows)
{
    char question[128], answer[64];
    snprintf(question, sizeof(question), "case %s %s %" PRIu64 " %u\n", op, type, width,
             (unsigned)rows);
    return ask(t, question, answer, sizeof(answer)) && strcmp(answer, "ok") == 0;
}

double hth_bench_torch_go(struct hth_bench_torch *t, const char *type, uint32_t runs)
{
    char question[64], answer[64];
    snprintf(question, sizeof(question), "go %s %u\n", type, (unsigned)runs);
    return ask(t, question, answer, sizeof(answer)) ? strtod(answer, NULL) * 1e-9 : 0;
}
