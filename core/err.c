/* SPDX-License-Identifier: Apache-2.0 */
/* err.c: the three readings of the error table, and the end of a broken invariant. */
#include "core/base.h"

#include <stdio.h>
#include <stdlib.h>

struct err_info {
    const char *name;
    const char *text;
    enum hth_err_class cls;
};

static const struct err_info err_table[] = {
#define ERR_ROW(num, name, cls, text) [num] = {#name, text, HTH_CLASS_##cls},
    HTH_ERR_MAP(ERR_ROW)
#undef ERR_ROW
};

_Static_assert(HTH_ARRAY_LEN(err_table) == HTH_ERR_COUNT, "HTH_ERR_COUNT counts the error table");

const char *hth_err_name(enum hth_err err)
{
    return (unsigned)err < HTH_ERR_COUNT ? err_table[err].name : "E_UNKNOWN";
}

const char *hth_err_text(enum hth_err err)
{
    return (unsigned)err < HTH_ERR_COUNT ? err_table[err].text : "unknown error";
}

enum hth_err_class hth_err_class(enum hth_err err)
{
    return (unsigned)err < HTH_ERR_COUNT ? err_table[err].cls : HTH_CLASS_PEER;
}

enum hth_err hth_err_from_wire(uint32_t number)
{
    return number < HTH_ERR_COUNT ? (enum hth_err)number : HTH_E_PROTOCOL;
}

void hth_assert_fail(const char *cond, const char *file, int line, const char *func)
{
    fprintf(stderr, "hearth: broken invariant: %s (%s:%d, %s)\n", cond, file, line, func);
    abort();
}
