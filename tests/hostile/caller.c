/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.c: an honest member that asks a host for its experts' names, a hundred times a second, and
 * prints the time that 99 of 100 calls take at most.
 *
 *     caller INVITE-FILE ADDR:PORT COUNT
 */
#include "hostile/attack.h"

#include "admission/gate.h"
#include "core/mem.h"
#include "experts/message.h"
#include "experts/server.h"
#include "net/net.h"
#include "rpc/rpc.h"

#include <stdio.h>
#include <stdlib.h>

#define EVERY_US (10 * HTH_US_PER_MS)

struct caller {
    struct hth_env *env;
    struct hth_rpc *rpc;
    struct hth_rpc_target target;
    struct hth_timer *timer;
    int64_t *took_us, began_us;
    size_t count, made;
    int code;
};

static void call(void *arg);

static void on_answer(void *arg, const struct hth_rpc_result *result)
{
    struct caller *c = arg;
    int64_t took_us = hth_now_us(c->env) - c->began_us;
    if (result->err != HTH_OK) {
        printf("call %zu: %s\n", c->made, hth_err_text(result->err));
        c->code = 1;
        hth_net_stop(c->env);
        return;
    }
    c->took_us[c->made++] = took_us;
    hth_timer_set(c->env, c->timer, HTH_MAX(0, EVERY_US - took_us));
}

static void call(void *arg)
{
    struct caller *c = arg;
    struct hth_rpc_call_opts o = {.method = HTH_METHOD_EXPERT_INFO,
                                  .timeout_us = 20 * HTH_US_PER_S};
    c->began_us = hth_now_us(c->env);
    if (c->made == c->count || hth_rpc_call(c->rpc, &c->target, &o, on_answer, c, NULL) != HTH_OK)
        hth_net_stop(c->env);
}

static int by_time(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
    static struct caller c;
    struct hth_net_opts net = {.compute_threads = 1};
    struct hth_rpc_opts rpc = HTH_RPC_OPTS_INIT;
    struct hth_admission own = {.admit = hth_gate_check, .holds = hth_gate_holds};
    struct hth_invite invite;
    struct hth_closed_run run;
    char network[HTH_NAME_LEN_MAX + 1];
    if (argc == 4)
        c.count = strtoul(argv[3], NULL, 10);
    if (c.count == 0 || !attack_invite(argv[1], &invite, network) ||
        !attack_addr(argv[2], &c.target.addr)) {
        fputs("usage: caller INVITE-FILE ADDR:PORT COUNT, of loopback\n", stderr);
        return 2;
    }
    if (hth_net_new(&net, &c.env) != HTH_OK)
        return 1;
    hth_invite_run(c.env->crypto, &invite, &run);
    own.creds_len =
        hth_invite_creds(c.env->crypto, &invite, &c.env->secret, hth_wall_us(c.env), own.creds);
    own.arg = hth_gate_new(c.env, &run);
    rpc.network = network;
    rpc.admission = &own;
    if (hth_rpc_new(c.env, &rpc, &c.rpc) != HTH_OK)
        return 1;
    c.took_us = hth_new_array(int64_t, c.count);
    c.timer = hth_timer_new(c.env, call, &c);
    hth_timer_set(c.env, c.timer, 0);
    if (hth_net_run(c.env) != HTH_OK || c.made < c.count)
        return 1;
    qsort(c.took_us, c.made, sizeof(*c.took_us), by_time);
    printf("%zu calls, 99 of 100 within %lld us, half within %lld us\n", c.made,
           (long long)c.took_us[c.made * 99 / 100], (long long)c.took_us[c.made / 2]);
    return 0;
}
