/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shipped.h: finds the files that come with the program: scripts of benchmarks, scenarios.
 *
 * A file is named by its path in the source tree. It is searched in this order: beside the program
 * (a copied folder), in ../share/hearth (installed: PREFIX/bin/hearth), in the source tree of the
 * build.
 *
 * Any thread.
 */
#ifndef HTH_CLI_SHIPPED_H
#define HTH_CLI_SHIPPED_H

#include "core/base.h"

/* The folder of the running program; heap string. */
char *hth_shipped_program(void);
/* The path of a file such as "benchmarks/torch_ffn.py", in the first of these places that has it,
 * else its path in the source tree. Heap string. */
char *hth_shipped_find(const char *name);
/* The same as for a program in that folder. */
char *hth_shipped_find_from(const char *folder, const char *name);

#endif
