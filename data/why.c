/* SPDX-License-Identifier: Apache-2.0 */
/* why.c: keeps the first sentence. */
#include "data/why.h"

#include <stdarg.h>
#include <stdio.h>

enum hth_err hth_blame(struct hth_why *why, enum hth_err err, const char *fmt, ...)
{
    va_list args;

    if (why == NULL || why->text[0] != '\0')
        return err;
    va_start(args, fmt);
    vsnprintf(why->text, sizeof(why->text), fmt, args);
    va_end(args);
    return err;
}
