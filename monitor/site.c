/* SPDX-License-Identifier: Apache-2.0 */
/* site.c: the page's files, and a run's numbers as tables of HTML. */
#include "monitor/site.h"

#include "core/mem.h"
#include "monitor/facts.h"
#include "monitor/gallery.h"
#include "monitor/inert.h"
#include "net/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* ---- the files ----------------------------------------------------------------------------- */

/* The bytes of a file of the build folder, and their number. A zero follows them. */
#define EMBED(name, file)                                                                          \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global hth_embed_" #name ", hth_embed_" #name "_len\n"                               \
            "hth_embed_" #name ": .incbin \"" HTH_SITE_DIR "/" file "\"\n"                         \
            "1: .byte 0\n"                                                                         \
            ".balign 8\n"                                                                          \
            "hth_embed_" #name "_len: .quad 1b - hth_embed_" #name "\n"                            \
            ".popsection\n");                                                                      \
    extern const uint8_t hth_embed_##name[];                                                       \
    extern const uint64_t hth_embed_##name##_len

EMBED(html, "index.html");
EMBED(js, "page.js.gz");
EMBED(css, "page.css.gz");
EMBED(icon, "icon.svg.gz");

/* gzip writes the length into the last four bytes. */
static void fill(struct hth_site_file *file, const char *path, const char *type, const uint8_t *gz,
                 uint64_t gz_len)
{
    *file = (struct hth_site_file){path, type, gz, gz_len, 0};
    for (int i = 1; i <= 4; i++)
        file->len = file->len << 8 | gz[gz_len - (size_t)i];
}

const struct hth_site_file *hth_site_files(void)
{
    static struct hth_site_file files[HTH_SITE_FILES];
    fill(&files[0], "/page.js", "text/javascript; charset=utf-8", hth_embed_js, hth_embed_js_len);
    fill(&files[1], "/page.css", "text/css; charset=utf-8", hth_embed_css, hth_embed_css_len);
    fill(&files[2], "/icon.svg", "image/svg+xml", hth_embed_icon, hth_embed_icon_len);
    return files;
}

char *hth_site_plain(const struct hth_site_file *file)
{
    char *out = hth_calloc(file->len + 1, 1);
    z_stream z = {.next_in = (Bytef *)(uintptr_t)file->gz,
                  .avail_in = (uInt)file->gz_len,
                  .next_out = (Bytef *)out,
                  .avail_out = (uInt)file->len};
    HTH_ASSERT(inflateInit2(&z, 16 + MAX_WBITS) == Z_OK); /* 16: gzip's format */
    HTH_ASSERT(inflate(&z, Z_FINISH) == Z_STREAM_END);
    inflateEnd(&z);
    return out;
}

/* ---- escaped text -------------------------------------------------------------------------- */

/* A longer text is cut: the longest that a monitor writes are commands and sentences. */
#define TEXT_BYTES 1024

static void text(FILE *to, const char *s)
{
    char inert[TEXT_BYTES];
    hth_inert(s, inert, sizeof(inert));
    for (const char *c = inert; *c != '\0'; c++) {
        if (strchr("<>&\"'", *c) != NULL)
            fprintf(to, "&#%d;", *c);
        else
            fputc(*c, to);
    }
}

/* ---- tables -------------------------------------------------------------------------------- */

#define EVENTS_MAX    200
#define PEERS_MAX     1024
#define LAYERS_MAX    256
#define UNSERVED_MAX  20 /* named in a layer's row */
#define TEST_ROWS_MAX 50 /* of the newest */

static void row_begin(FILE *to, const char *head)
{
    fputs("<tr><th scope=\"row\">", to);
    text(to, head);
    fputs("</th>", to);
}

static void cell(FILE *to, const char *content)
{
    fputs("<td>", to);
    text(to, content);
    fputs("</td>", to);
}

static void heads(FILE *to, const char *caption, const char *const *head, size_t count)
{
    fprintf(to, "<table><caption>%s</caption><thead><tr>", caption);
    for (size_t i = 0; i < count; i++)
        fprintf(to, "<th scope=\"col\">%s</th>", head[i]);
    fputs("</tr></thead><tbody>\n", to);
}

static void end_table(FILE *to)
{
    fputs("</tbody></table>\n", to);
}

static void facts_table(FILE *to, const json_t *run)
{
    struct hth_fact fact[HTH_FACTS];
    const char *command = hth_fact_text(json_object_get(run, "join"), "command");
    const char *ask = hth_fact_text(json_object_get(run, "join"), "ask");
    const char *trouble = hth_fact_text(run, "trouble");
    hth_facts(run, fact);
    fputs("<table><caption>Now</caption><tbody>\n", to);
    for (size_t i = 0; i < HTH_FACTS; i++) {
        row_begin(to, fact[i].name);
        cell(to, fact[i].text);
        fputs("</tr>\n", to);
    }
    if (command[0] != '\0') {
        fputs("<tr><th scope=\"row\">join</th><td><code>", to);
        text(to, command);
        fputs("</code></td></tr>\n", to);
    }
    if (ask[0] != '\0') {
        row_begin(to, "ask for an invite");
        cell(to, ask);
        fputs("</tr>\n", to);
    }
    if (trouble[0] != '\0') {
        row_begin(to, "trouble");
        cell(to, trouble);
        fputs("</tr>\n", to);
    }
    end_table(to);
}

/* The experts that no host serves, the first of them by name. */
static void unserved_cell(FILE *to, const json_t *layer)
{
    const json_t *replicas = json_object_get(layer, "replicas");
    char uid[HTH_FACT_TEXT];
    size_t missing = 0;
    fputs("<td>", to);
    for (size_t i = 0; i < json_array_size(replicas); i++) {
        if (json_integer_value(json_array_get(replicas, i)) != 0 || ++missing > UNSERVED_MAX)
            continue;
        hth_fact_uid(layer, i, uid);
        fputs(missing > 1 ? ", " : "", to);
        text(to, uid);
    }
    if (missing > UNSERVED_MAX)
        fprintf(to, " and %zu more", missing - UNSERVED_MAX);
    fputs("</td>", to);
}

static void layers_table(FILE *to, const json_t *run)
{
    static const char *const head[] = {"layer", "experts", "served", "by two or more", "no host"};
    const json_t *layers = json_object_get(run, "layers");
    char number[32];
    heads(to, "Experts", head, HTH_ARRAY_LEN(head));
    for (size_t l = 0; l < HTH_MIN(json_array_size(layers), (size_t)LAYERS_MAX); l++) {
        const json_t *layer = json_array_get(layers, l);
        static const char *const counts[] = {"places", "served", "twice"};
        row_begin(to, hth_fact_text(layer, "name"));
        for (size_t i = 0; i < HTH_ARRAY_LEN(counts); i++) {
            snprintf(number, sizeof(number), "%.0f", hth_fact_or(layer, counts[i], 0));
            cell(to, number);
        }
        unserved_cell(to, layer);
        fputs("</tr>\n", to);
    }
    end_table(to);
}

static void peers_table(FILE *to, const json_t *run)
{
    const json_t *peers = json_object_get(run, "peers");
    char cells[HTH_PEER_CELLS][HTH_FACT_TEXT];
    heads(to, "Peers", hth_peer_heads, HTH_PEER_CELLS);
    for (size_t p = 0; p < HTH_MIN(json_array_size(peers), (size_t)PEERS_MAX); p++) {
        hth_peer_cells(json_array_get(peers, p), cells);
        row_begin(to, cells[0]);
        for (size_t i = 1; i < HTH_PEER_CELLS; i++)
            cell(to, cells[i]);
        fputs("</tr>\n", to);
    }
    end_table(to);
}

/* The number in row `at` of a column; "": null. */
static void column_cell(FILE *to, const json_t *table, const char *column, size_t at)
{
    const json_t *value = json_array_get(json_object_get(table, column), at);
    char number[32] = "";
    if (json_is_number(value))
        snprintf(number, sizeof(number), "%.6g", json_number_value(value));
    cell(to, number);
}

static void tests_table(FILE *to, const json_t *run)
{
    static const char *const head[] = {"step", "loss", "accuracy", "bits a byte"};
    static const char *const column[] = {"step", "loss", "accuracy", "bits_per_byte"};
    const json_t *tests = json_object_get(run, "tests");
    size_t count = json_array_size(json_object_get(tests, "step"));
    heads(to, "Tests", head, HTH_ARRAY_LEN(head));
    for (size_t i = count > TEST_ROWS_MAX ? count - TEST_ROWS_MAX : 0; i < count; i++) {
        fputs("<tr>", to);
        for (size_t c = 0; c < HTH_ARRAY_LEN(column); c++)
            column_cell(to, tests, column[c], i);
        fputs("</tr>\n", to);
    }
    end_table(to);
}

static void gallery_table(FILE *to, const json_t *run)
{
    static const char *const head[] = {"prompt", "answer"};
    const json_t *gallery = json_object_get(run, "gallery"),
                 *items = json_object_get(gallery, "items");
    double step = HTH_MIN(HTH_MAX(hth_fact_or(gallery, "step", 0), 0.0), 1e15);
    /* No other address may come into the page. */
    bool drawn = strcmp(hth_fact_text(gallery, "picture"), HTH_GALLERY_FILE) == 0;
    if (json_array_size(items) == 0)
        return;
    heads(to, "The model's answers", head, HTH_ARRAY_LEN(head));
    for (size_t i = 0; i < HTH_MIN(json_array_size(items), (size_t)HTH_GALLERY_MAX); i++) {
        const json_t *item = json_array_get(items, i);
        row_begin(to, hth_fact_text(item, "prompt"));
        if (drawn) {
            fprintf(to,
                    "<td><img class=\"drawing d%zu\" src=\"" HTH_GALLERY_FILE
                    "?%.0f\" alt=\"drawing: ",
                    i, step);
            text(to, hth_fact_text(item, "prompt"));
            fputs("\"></td>", to);
        } else {
            cell(to, hth_fact_text(item, "text"));
        }
        fputs("</tr>\n", to);
    }
    end_table(to);
}

static void events_table(FILE *to, const json_t *run)
{
    static const char *const head[] = {"time", "event"};
    const json_t *events = json_object_get(run, "events");
    size_t count = json_array_size(events);
    char at[HTH_FACT_TEXT];
    heads(to, "Events", head, HTH_ARRAY_LEN(head));
    for (size_t i = count; i > 0 && i > count - HTH_MIN(count, (size_t)EVENTS_MAX); i--) {
        const json_t *event = json_array_get(events, i - 1);
        fputs("<tr>", to);
        hth_fact_time(hth_fact_or(event, "t", 0), at);
        cell(to, at);
        cell(to, hth_fact_text(event, "text"));
        fputs("</tr>\n", to);
    }
    end_table(to);
}

static void numbers(FILE *to, const json_t *run, bool live)
{
    const char *name = hth_fact_text(run, "run");
    fprintf(to,
            "<section id=\"numbers\" tabindex=\"0\" aria-label=\"The run in numbers\" "
            "data-live=\"%s\">\n<h1>",
            live ? "yes" : "no");
    text(to, name[0] != '\0' ? name : "a run");
    fputs("</h1>\n", to);
    facts_table(to, run);
    layers_table(to, run);
    gallery_table(to, run);
    peers_table(to, run);
    tests_table(to, run);
    events_table(to, run);
    fputs("</section>\n", to);
}

/* Writes the page up to the mark; returns what follows that. */
static const char *write_until(FILE *to, const char *page, const char *mark)
{
    const char *at = strstr(page, mark);
    HTH_ASSERT(at != NULL);
    fwrite(page, 1, (size_t)(at - page), to);
    return at + strlen(mark);
}

char *hth_site_html(const json_t *run, bool live)
{
    const char *page = (const char *)hth_embed_html;
    char *made = NULL;
    size_t len;
    FILE *to = open_memstream(&made, &len);
    HTH_ASSERT(to != NULL);
    page = write_until(to, page, "<!--policy-->");
    fputs("<meta http-equiv=\"Content-Security-Policy\" content=\"" HTH_HTTP_POLICY "\">", to);
    page = write_until(to, page, "<!--numbers-->\n");
    numbers(to, run, live);
    fputs(page, to);
    HTH_ASSERT(fclose(to) == 0);
    char *out = hth_strdup(made);
    free(made);
    return out;
}
