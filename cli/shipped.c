/* SPDX-License-Identifier: Apache-2.0 */
/* shipped.c: finds the program's own files. */
#include "cli/shipped.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

char *hth_shipped_program(void)
{
    char path[1024];
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[len > 0 ? len : 0] = '\0';
    char *slash = strrchr(path, '/');
    if (slash != NULL)
        *slash = '\0';
    return hth_strdup(path);
}

char *hth_shipped_find_from(const char *folder, const char *name)
{
    char *places[] = {hth_asprintf("%s/%s", folder, name),
                      hth_asprintf("%s/../share/hearth/%s", folder, name),
                      hth_asprintf("%s/%s", HTH_SHIPPED_SOURCES, name)};
    size_t at = 0, last = HTH_ARRAY_LEN(places) - 1;
    while (at < last && access(places[at], R_OK) != 0)
        at++;
    for (size_t i = 0; i <= last; i++) {
        if (i != at)
            hth_free(places[i]);
    }
    return places[at];
}

char *hth_shipped_find(const char *name)
{
    char *folder = hth_shipped_program(), *path = hth_shipped_find_from(folder, name);
    hth_free(folder);
    return path;
}
