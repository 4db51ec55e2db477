/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c: finds, checks and keeps the plug-in; see plugin.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "kernels/plugin_int.h"

#define KIND "cuda"

/* Written by the one thread that loads, read by all once `stage` is LOADED. */
enum { UNTRIED, LOADING, LOADED };
static struct {
    atomic_int stage;
    char *folders[HTH_FOLDERS_MAX];
    size_t count;
    char *libraries;                 /* NULL: not set */
    const struct hth_plugin *plugin; /* NULL: none */
    atomic_uint_least64_t limit;
    char why[200];
} found;

void hth_plugins_search(const char *const *folders, size_t count)
{
    if (found.count > 0 || atomic_load(&found.stage) != UNTRIED)
        return;
    for (size_t i = 0; i < count && found.count < HTH_FOLDERS_MAX; i++) {
        if (folders[i] != NULL && folders[i][0] != '\0')
            found.folders[found.count++] = hth_strdup(folders[i]);
    }
}

void hth_plugins_libraries(const char *folder)
{
    if (found.libraries == NULL && atomic_load(&found.stage) == UNTRIED && folder != NULL &&
        folder[0] != '\0')
        found.libraries = hth_strdup(folder);
}

static bool fits(const struct hth_plugin *p)
{
    const struct hth_plugin own = {HTH_PLUGIN_HEAD};
    return p->abi == own.abi && p->size == own.size && p->backend_size == own.backend_size &&
           p->exec_size == own.exec_size && p->weight_size == own.weight_size &&
           p->params_size == own.params_size && p->info_size == own.info_size;
}

/* Loads one file. False: no such file, continue the search. */
static bool try_file(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *text = dlerror();
        bool missing = text != NULL && strstr(text, "No such file") != NULL &&
                       strncmp(text, path, strlen(path)) == 0;
        if (!missing)
            snprintf(found.why, sizeof(found.why), "%s", text != NULL ? text : path);
        return !missing;
    }
    void *symbol = dlsym(handle, HTH_PLUGIN_SYMBOL);
    hth_plugin_fn *entry = NULL;
    memcpy(&entry, &symbol, sizeof(entry));
    const struct hth_plugin *p = entry != NULL ? entry() : NULL;
    if (p == NULL || !fits(p)) {
        snprintf(found.why, sizeof(found.why), "%s belongs to another build of hearth", path);
        (void)dlclose(handle); /* none of it was used */
        return true;
    }
    found.plugin = p;
    return true;
}

static void load(void)
{
    if (found.count == 0) {
        snprintf(found.why, sizeof(found.why), "no folder is set for " HTH_PLUGIN_FILE);
        return;
    }
    for (size_t i = 0; i < found.count; i++) {
        char *path = hth_asprintf("%s/" HTH_PLUGIN_FILE, found.folders[i]);
        bool done = try_file(path);
        hth_free(path);
        if (done)
            return;
    }
    snprintf(found.why, sizeof(found.why),
             "no " HTH_PLUGIN_FILE " (this build has no CUDA, or it is not installed)");
}

static const struct hth_plugin *plugin(void)
{
    int stage = UNTRIED;
    if (atomic_compare_exchange_strong(&found.stage, &stage, LOADING)) {
        load();
        atomic_store(&found.stage, LOADED);
    }
    while (atomic_load(&found.stage) != LOADED) /* milliseconds, once in a process */
        continue;
    return found.plugin;
}

void hth_plugins_limit(uint64_t bytes)
{
    atomic_store(&found.limit, bytes);
}

size_t hth_devices_list(struct hth_device_info *out, size_t max)
{
    const struct hth_plugin *p = plugin();
    if (p != NULL)
        return p->devices(out, max);
    if (max == 0)
        return 0;
    out[0] = (struct hth_device_info){.kind = KIND, .index = -1};
    snprintf(out[0].why, sizeof(out[0].why), "%s", found.why);
    return 1;
}

uint64_t hth_device_weights_bytes(uint64_t memory_bytes)
{
    return memory_bytes - HTH_MIN(HTH_DEVICE_RESERVE, memory_bytes / 2);
}

static uint64_t whole_pages(uint64_t bytes)
{
    const uint64_t page = (uint64_t)2 << 20;
    return (bytes + page - 1) / page * page;
}

uint64_t hth_device_expert_bytes(uint64_t parameters, uint32_t states, bool bf16)
{
    uint64_t part = parameters * sizeof(float);
    return whole_pages(part + (bf16 ? parameters * sizeof(uint16_t) : 0)) +
           (1 + states) * whole_pages(part);
}

bool hth_plugin_knows(const char *name)
{
    size_t len = strlen(KIND);
    return name != NULL && strncmp(name, KIND, len) == 0 && (name[len] == '\0' || name[len] == ':');
}

/* "cuda" is device 0; -1: no number. */
static int device_of(const char *name)
{
    const char *at = name + strlen(KIND);
    int number = 0, digits = 0;
    if (*at == '\0')
        return 0;
    for (at++; *at >= '0' && *at <= '9' && digits < 3; at++, digits++)
        number = 10 * number + (*at - '0');
    return digits > 0 && *at == '\0' ? number : -1;
}

enum hth_err hth_plugin_backend(const char *name, enum hth_matmul compute,
                                const struct hth_backend **out, char *why, size_t why_size)
{
    int device = hth_plugin_knows(name) ? device_of(name) : -1;
    if (device < 0 || device >= HTH_DEVICES_MAX) {
        snprintf(why, why_size, "no such device name; use cuda, or cuda:0 to cuda:%d",
                 HTH_DEVICES_MAX - 1);
        return HTH_E_NO_DEVICE;
    }
    const struct hth_plugin *p = plugin();
    if (p == NULL) {
        snprintf(why, why_size, "%s", found.why);
        return HTH_E_NO_DEVICE;
    }
    return p->open((uint32_t)device, atomic_load(&found.limit), found.libraries, compute, out, why,
                   why_size);
}
