/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inert.h: text of strangers, for places where it may do no harm.
 *
 * Names of runs and layers are UTF-8 of almost any kind. Characters that control a terminal, break
 * a line, change the direction of text or are not seen could make one thing look like another; each
 * becomes U+FFFD. Markup needs no care here: readers of JSON show text, not markup.
 *
 * A pure function, any thread.
 */
#ifndef HTH_MONITOR_INERT_H
#define HTH_MONITOR_INERT_H

#include "core/base.h"

/* Copies as many whole characters as fit into `size` bytes with their end. Bytes that are no UTF-8
 * become U+FFFD, too. Returns out. */
const char *hth_inert(const char *text, char *out, size_t size);

#endif
