/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shipped.h: files that come with the program: scripts of benchmarks, scenarios.
 *
 * They are named by their path in the source tree, and have the same one wherever they are: beside
 * the program (a folder that was copied), in ../share/hearth (installed: PREFIX/bin/hearth), or in
 * the tree that it was built from, in this order.
 */
#ifndef HTH_CLI_SHIPPED_H
#define HTH_CLI_SHIPPED_H

#include "core/base.h"

/* The program's own folder; heap string. */
char *hth_shipped_program(void);
/* The first of those places that has a file of that name, such as "benchmarks/torch_ffn.py"; if
 * none has, where it would be in the source tree. Heap string. */
char *hth_shipped_find(const char *name);
/* The same for a program in that folder. */
char *hth_shipped_find_from(const char *folder, const char *name);

#endif
