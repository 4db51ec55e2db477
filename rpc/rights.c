/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rights.c: the roles that methods ask for. The numbers are the protocol's (docs/protocol.md); the
 * folders that serve them lie above this one.
 */
#include "rpc/rpc_int.h"

static const struct {
    uint16_t first, last;
    uint8_t roles;
} rights[] = {
    {17, 18, HTH_MAY_TRAIN},                                 /* FORWARD, BACKWARD */
    {19, 19, HTH_MAY_TRAIN | HTH_MAY_SERVE | HTH_MAY_WATCH}, /* WEIGHTS of experts */
    {64, 66, HTH_MAY_TRAIN | HTH_MAY_REDUCE},                /* JOIN, REDUCE */
    {67, 68, HTH_MAY_TRAIN | HTH_MAY_WATCH},                 /* DESCRIBE, PART of states, means */
    {72, 76, HTH_MAY_TRAIN | HTH_MAY_REDUCE},                /* READY, CALL, LINKS, ROW */
};

uint8_t hth_rpc_rights(uint16_t method)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(rights); i++)
        if (method >= rights[i].first && method <= rights[i].last)
            return rights[i].roles;
    return 0;
}
