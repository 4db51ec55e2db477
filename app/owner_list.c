/* SPDX-License-Identifier: Apache-2.0 */
/* owner_list.c: DIR/invites, the list of what was signed and revoked, and hearth owner list. */
#include "app/owner_int.h"

#include "core/mem.h"
#include "net/net.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES 256

struct hth_owner_entry *hth_owner_lines(const struct hth_owner *o, size_t *count)
{
    struct hth_owner_entry *all = NULL, e;
    char line[LINE_MAX_BYTES];
    size_t room = 0;
    FILE *f = fopen(o->list_path, "re");
    *count = 0;
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%llu %lld %u %47s %63s %32s %15s", &e.serial, &e.until_s, &e.class,
                   e.roles, e.run, e.name, e.kind) != 7)
            continue;
        e.revokes = strcmp(e.kind, HTH_OWNER_REVOKED) == 0;
        if (*count == room) {
            room = room == 0 ? 64 : 2 * room;
            all = hth_realloc(all, room, sizeof(*all));
        }
        all[(*count)++] = e;
    }
    if (f != NULL)
        fclose(f);
    return all;
}

enum hth_err hth_owner_note(const struct hth_owner *o, const struct hth_owner_entry *e)
{
    mode_t mask = umask(077);
    FILE *f = hth_net_mkdirs(o->list_path) == HTH_OK ? fopen(o->list_path, "ae") : NULL;
    umask(mask);
    bool good = f != NULL && fprintf(f, "%llu %lld %u %s %s %s %s\n", e->serial, e->until_s,
                                     e->class, e->roles, e->run, e->name, e->kind) > 0;
    if (f != NULL)
        good &= fclose(f) == 0;
    if (!good)
        hth_cli_say_error("%s can't be written: %s", o->list_path, strerror(errno));
    return good ? HTH_OK : HTH_E_IO;
}

static bool is_revoked(const struct hth_owner_entry *all, size_t count, unsigned long long serial)
{
    for (size_t i = 0; i < count; i++)
        if (all[i].revokes && all[i].serial == serial)
            return true;
    return false;
}

enum hth_err hth_owner_list(struct hth_owner *o)
{
    char date[32];
    size_t count;
    struct hth_owner_entry *all = hth_owner_lines(o, &count);
    int64_t now_s = hth_owner_now_us() / HTH_US_PER_S;
    if (count == 0 && access(o->list_path, R_OK) != 0 && errno != ENOENT) {
        hth_cli_say_error("%s can't be read: %s", o->list_path, strerror(errno));
        return HTH_E_PERMISSION;
    }
    if (count == 0)
        hth_say_note("no invites were made with %s", o->key_path);
    for (size_t i = 0; i < count; i++) {
        const struct hth_owner_entry *e = &all[i];
        if (e->revokes)
            continue;
        hth_say("%llu  %-9s %-16s %s  until %s%s  run '%s'%s", e->serial, e->kind, e->name,
                e->roles, hth_admit_date(e->until_s * HTH_US_PER_S, date),
                is_revoked(all, count, e->serial) ? " (revoked)"
                : e->until_s < now_s              ? " (over)"
                                                  : "",
                e->run, e->class == HTH_PROBATION ? ", on probation" : "");
    }
    hth_free(all);
    return HTH_OK;
}
