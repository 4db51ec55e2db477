/* SPDX-License-Identifier: Apache-2.0 */
#include "monitor/publish.h"

#include "core/mem.h"
#include "monitor/site.h"
#include "net/http.h"

#include <string.h>
#include <zlib.h>

/* Fast: it is done every ten seconds, on a machine that has other work. */
#define LEVEL 4

/* One text, plain and compressed. */
struct text {
    struct hth_blob *plain, *gzip;
};

static const struct {
    const char *path, *file, *type;
} DOCS[] = {
    {"/", "index.html", "text/html; charset=utf-8"},
    {"/run.json", "run.json", "application/json"},
    {"/now.json", "now.json", "application/json"},
};
enum { HTML, RUN, NOW, DOCS_COUNT };

/* A picture that is made into texts. */
struct making {
    struct hth_job job;
    struct hth_env *env;
    struct hth_publish *of; /* NULL: it is gone */
    struct hth_run_now now; /* with arrays of its own, and a reference of the view */
    char trouble[160];
    json_t *run;
    char *event;
    const char *dir; /* NULL: not this time */
    struct text doc[DOCS_COUNT];
    enum hth_err err;
};

struct hth_publish {
    struct hth_env *env;
    struct hth_publish_opts opts;
    struct making *making;
    bool written;    /* the folder has a picture with answers, */
    uint64_t served; /* with so many experts served */
    int64_t written_us;
    enum hth_err err;
};

/* ---- a job ---------------------------------------------------------------------------------- */

static void drop_plain(void *arg, void *data)
{
    (void)arg;
    hth_free(data);
}

static struct hth_blob *compress_text(const char *text, size_t len)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)text, .avail_in = (uInt)len};
    if (deflateInit2(&z, LEVEL, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    size_t room = deflateBound(&z, (uLong)len);
    uint8_t *out = hth_new_array(uint8_t, room);
    z.next_out = out;
    z.avail_out = (uInt)room;
    bool whole = deflate(&z, Z_FINISH) == Z_STREAM_END;
    struct hth_blob *blob = whole ? hth_blob_copy(out, z.total_out) : NULL;
    deflateEnd(&z);
    hth_free(out);
    return blob;
}

static struct text text_take(char *text)
{
    size_t len = strlen(text);
    struct text out = {.gzip = compress_text(text, len)};
    out.plain = hth_blob_wrap(text, len, drop_plain, NULL);
    return out;
}

static void text_clear(struct text *t)
{
    hth_blob_unref(t->plain);
    hth_blob_unref(t->gzip);
}

static enum hth_err write_file(const struct making *m, const char *name, struct hth_blob *blob)
{
    char *path = hth_asprintf("%s/%s", m->dir, name);
    const struct hth_span span = {blob, 0, blob->size};
    enum hth_err err = hth_file_write(m->env, path, &span, 1);
    hth_free(path);
    return err;
}

static enum hth_err write_folder(const struct making *m)
{
    const struct hth_site_file *file = hth_site_files();
    for (size_t i = 0; i < HTH_SITE_FILES; i++) {
        struct hth_blob *blob =
            hth_blob_wrap(hth_site_plain(&file[i]), file[i].len, drop_plain, NULL);
        enum hth_err err = write_file(m, file[i].path + 1, blob);
        hth_blob_unref(blob);
        HTH_TRY(err);
    }
    if (m->now.gallery != NULL && m->now.gallery->png != NULL)
        HTH_TRY(write_file(m, HTH_GALLERY_FILE, m->now.gallery->png));
    HTH_TRY(write_file(m, DOCS[RUN].file, m->doc[RUN].plain));
    HTH_TRY(write_file(m, DOCS[NOW].file, m->doc[NOW].plain));
    char *html = hth_site_html(m->run, false);
    struct hth_blob *page = hth_blob_wrap(html, strlen(html), drop_plain, NULL);
    enum hth_err err = write_file(m, DOCS[HTML].file, page);
    hth_blob_unref(page);
    return err;
}

static void run_making(struct hth_job *job)
{
    struct making *m = HTH_CONTAINER(job, struct making, job);
    m->run = hth_run_json(&m->now, true);
    m->event = hth_run_json_text_take(hth_run_json_event(&m->now));
    m->doc[HTML] = text_take(hth_site_html(m->run, true));
    m->doc[RUN] = text_take(hth_run_json_text_take(json_incref(m->run)));
    json_t *now = json_copy(m->run);
    json_object_del(now, "history");
    json_object_del(now, "tests");
    m->doc[NOW] = text_take(hth_run_json_text_take(now));
    if (m->dir != NULL)
        m->err = write_folder(m);
    json_decref(m->run); /* of ten thousand experts: not on the loop */
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void show(struct hth_publish *p, const struct making *m)
{
    struct hth_blob *drawings = m->now.gallery != NULL ? m->now.gallery->png : NULL;
    for (size_t s = 0; s < HTH_PUBLISH_SERVERS_MAX; s++) {
        struct hth_http *http = p->opts.http[s];
        if (http != NULL && drawings != NULL) /* before the page that names it */
            hth_http_put(http, "/" HTH_GALLERY_FILE, "image/png", drawings, NULL);
        for (size_t i = 0; http != NULL && i < DOCS_COUNT; i++)
            hth_http_put(http, DOCS[i].path, DOCS[i].type, m->doc[i].plain, m->doc[i].gzip);
        if (http != NULL)
            hth_http_tell(http, "/events", "now", m->event);
    }
}

static void note_written(struct hth_publish *p, const struct making *m)
{
    if (m->dir == NULL)
        return;
    if (m->err != HTH_OK && m->err != p->err)
        HTH_LOG(p->env, HTH_WARN, HTH_SUB_APP, "can't write the page to %s: %s; trying on", m->dir,
                hth_err_text(m->err));
    p->err = m->err;
    p->written_us = hth_now_us(p->env);
}

static void free_making(struct making *m)
{
    for (size_t i = 0; i < DOCS_COUNT; i++)
        text_clear(&m->doc[i]);
    hth_free(m->event);
    hth_run_view_free(m->now.view);
    hth_gallery_unref(m->now.gallery);
    hth_free((void *)(uintptr_t)m->now.test);
    hth_free((void *)(uintptr_t)m->now.event);
    hth_free((void *)(uintptr_t)m->now.row);
    hth_free(m);
}

static void made(struct hth_job *job, enum hth_err err)
{
    struct making *m = HTH_CONTAINER(job, struct making, job);
    struct hth_publish *p = m->of;
    if (p != NULL)
        p->making = NULL;
    if (p != NULL && err == HTH_OK) {
        show(p, m);
        note_written(p, m);
    }
    free_making(m);
}

static void *copy(const void *data, size_t count, size_t size)
{
    void *out = hth_calloc(count + 1, size);
    if (count > 0)
        memcpy(out, data, count * size);
    return out;
}

/* Copies all that the job reads, because the run goes on meanwhile. */
static void keep(struct making *m, const struct hth_run_now *now)
{
    m->now = *now;
    if (now->view != NULL)
        m->now.view = hth_run_view_ref(now->view);
    if (now->gallery != NULL)
        m->now.gallery = hth_gallery_ref(now->gallery);
    if (now->trouble != NULL)
        m->now.trouble =
            memcpy(m->trouble, now->trouble, HTH_MIN(strlen(now->trouble), sizeof(m->trouble) - 1));
    m->now.test = copy(now->test, now->test_count, sizeof(*now->test));
    m->now.event = copy(now->event, now->event_count, sizeof(*now->event));
    m->now.row = copy(now->row, now->row_count, sizeof(*now->row));
}

void hth_publish_show(struct hth_publish *p, const struct hth_run_now *now)
{
    int64_t age_us = hth_now_us(p->env) - p->written_us;
    if (p->making != NULL)
        return;
    struct making *m = hth_new(struct making);
    m->job = (struct hth_job){.lane = HTH_LANE_IO, .run = run_making, .done = made};
    m->env = p->env;
    m->of = p;
    keep(m, now);
    /* Each third view, as their periods are not exactly alike; and at once the first one with
     * answers, and those of which hosts came or died. */
    uint64_t served = now->view != NULL ? now->view->served : 0;
    bool first = now->asked_us != 0 && (!p->written || served != p->served);
    p->written = p->written || first;
    p->served = served;
    if (p->opts.dir != NULL &&
        (first || p->written_us == 0 || age_us >= HTH_PUBLISH_EXPORT_US - HTH_US_PER_S))
        m->dir = p->opts.dir;
    if (hth_job_submit(p->env, &m->job) == HTH_OK)
        p->making = m;
    else
        free_making(m);
}

struct hth_publish *hth_publish_new(struct hth_env *env, const struct hth_publish_opts *opts)
{
    const struct hth_site_file *file = hth_site_files();
    struct hth_publish *p = hth_new(struct hth_publish);
    p->env = env;
    p->opts = *opts;
    for (size_t i = 0; i < HTH_SITE_FILES; i++) {
        struct hth_blob *plain =
            hth_blob_wrap(hth_site_plain(&file[i]), file[i].len, drop_plain, NULL);
        struct hth_blob *gzip = hth_blob_copy(file[i].gz, file[i].gz_len);
        for (size_t s = 0; s < HTH_PUBLISH_SERVERS_MAX; s++)
            if (opts->http[s] != NULL)
                hth_http_put(opts->http[s], file[i].path, file[i].type, plain, gzip);
        hth_blob_unref(plain);
        hth_blob_unref(gzip);
    }
    return p;
}

void hth_publish_free(struct hth_publish *p)
{
    if (p != NULL && p->making != NULL)
        p->making->of = NULL;
    hth_free(p);
}

enum hth_err hth_publish_err(const struct hth_publish *p)
{
    return p->err;
}
