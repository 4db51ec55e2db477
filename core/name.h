/* SPDX-License-Identifier: Apache-2.0 */
/*
 * name.h: the rule for every name that people give: of a run, a layer, a member.
 *
 * A name is 1 to HTH_NAME_LEN_MAX bytes of valid UTF-8 without dots, spaces, brackets, slashes,
 * control characters or marks of text's direction: names become file names and log lines.
 */
#ifndef HTH_CORE_NAME_H
#define HTH_CORE_NAME_H

#include "core/base.h"
#include "core/limits.h"

/* Errors: E_MALFORMED, E_TOO_LARGE. */
enum hth_err hth_name_check(const char *name, size_t len) HTH_MUST;

#endif
