/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_page.c: a run's page in a browser: it fits its window, shows the run's figures, stays new,
 * keeps the untrusted inert, and is quick with a large run. It says so where there is no Chromium.
 *
 * tools/screenshot has it picture a run. With HTH_TEST_SHOTS=DIR it leaves its screenshots there,
 * and HTH_TEST_AXE=axe.min.js has axe-core look at each view.
 */
#define _XOPEN_SOURCE 700
#include "monitor/browser.h"

#include "core/mem.h"
#include "data/picture.h"
#include "monitor/site.h"

#include <stdlib.h>
#include <zlib.h>

#define READY "document.getElementById('live').ariaBusy === 'false'"

struct world {
    struct browser *b;
    json_t *run;        /* run.json */
    bool live;          /* index.html's */
    const char *events; /* the stream's bytes; NULL: no connection */
    bool mutate;        /* each answer of run.json is damaged anew */
    uint32_t seed;
    unsigned runs, nows; /* answers given */
    unsigned refusals;   /* of the next readers of events */
    size_t sent;         /* bytes of answers, compressed */
    char *body;          /* of the last answer */
    struct hth_blob *png;
};

/* ---- the server ---------------------------------------------------------------------------- */

static size_t gz_len(const void *data, size_t len)
{
    uLong most = compressBound(len) + 32;
    uLongf got = most;
    Bytef *out = malloc(most);
    assert_int_equal(compress2(out, &got, data, len, 9), Z_OK);
    free(out);
    return got;
}

static uint32_t draw(struct world *w, uint32_t n)
{
    w->seed = w->seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(w->seed >> 8) * n >> 24);
}

/* A value that a reader might not expect. */
static json_t *hostile(struct world *w)
{
    static const char *const texts[] = {"",
                                        "<img src=x onerror=alert(1)>",
                                        "\u202egnp.exe",
                                        "a\x01\x7f\xc2\x85\u2028"
                                        "b",
                                        "__proto__",
                                        "NaN"};
    static const double numbers[] = {-1, 0, 1e308, -1e308, 0.5, 9007199254740993.0, 4294967296.0};
    switch (draw(w, 6)) {
    case 0:
        return json_null();
    case 1:
        return json_string(texts[draw(w, HTH_ARRAY_LEN(texts))]);
    case 2:
        return json_real(numbers[draw(w, HTH_ARRAY_LEN(numbers))]);
    case 3:
        return json_array();
    case 4:
        return json_object();
    default:
        return json_true();
    }
}

/* Replaces a few of a document's values, at any depth. */
static void damage(struct world *w, json_t *value, int depth)
{
    const char *key;
    json_t *child;
    size_t i, n = json_array_size(value);
    void *tmp;
    if (json_is_object(value)) {
        json_object_foreach_safe(value, tmp, key, child)
        {
            if (draw(w, 12) == 0)
                json_object_set_new(value, key, hostile(w));
            else if (depth < 4)
                damage(w, child, depth + 1);
        }
    }
    for (i = 0; i < n && i < 16; i++) {
        if (draw(w, 12) == 0)
            json_array_set_new(value, draw(w, (uint32_t)n), hostile(w));
        else
            damage(w, json_array_get(value, i), depth + 1);
    }
}

static void answer_json(struct world *w, struct browser_answer *a, bool whole)
{
    json_t *doc = w->mutate ? json_deep_copy(w->run) : json_copy(w->run);
    if (!whole) {
        json_object_del(doc, "history");
        json_object_del(doc, "tests");
    }
    if (w->mutate)
        damage(w, doc, 0);
    w->body = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    *a = (struct browser_answer){
        .status = 200, .type = "application/json", .body = w->body, .len = strlen(w->body)};
    w->sent += gz_len(a->body, a->len);
}

static void serve(void *arg, const char *path, struct browser_answer *a)
{
    struct world *w = arg;
    free(w->body);
    w->body = NULL;
    *a = (struct browser_answer){.status = 404, .type = "text/plain", .body = "", .len = 0};
    if (path[0] == '\0') {
        char *html = hth_site_html(w->run, w->live);
        w->body = strdup(html);
        hth_free(html);
        *a = (struct browser_answer){.status = 200,
                                     .type = "text/html; charset=utf-8",
                                     .body = w->body,
                                     .len = strlen(w->body)};
        w->sent += gz_len(a->body, a->len);
    } else if (strcmp(path, "run.json") == 0) {
        w->runs++;
        answer_json(w, a, true);
    } else if (strcmp(path, "now.json") == 0) {
        w->nows++;
        answer_json(w, a, false);
    } else if (strcmp(path, "events") == 0 && w->refusals > 0) {
        w->refusals--;
        a->status = 503;
    } else if (strcmp(path, "events") == 0) {
        a->status = w->events != NULL ? 200 : 0;
        a->type = "text/event-stream";
        a->body = w->events;
        a->len = w->events != NULL ? strlen(w->events) : 0;
        w->events = NULL; /* the browser dials again */
    }
    if (strncmp(path, "drawings.png", strlen("drawings.png")) == 0)
        *a = (struct browser_answer){.status = 200,
                                     .type = "image/png",
                                     .body = (const char *)w->png->data,
                                     .len = w->png->size};
    const struct hth_site_file *files = hth_site_files();
    for (size_t i = 0; i < HTH_SITE_FILES; i++) {
        if (strcmp(path, files[i].path + 1) != 0)
            continue;
        char *plain = hth_site_plain(&files[i]);
        w->body = strdup(plain);
        hth_free(plain);
        *a = (struct browser_answer){
            .status = 200, .type = files[i].type, .body = w->body, .len = strlen(w->body)};
        w->sent += files[i].gz_len;
    }
}

/* ---- helpers ------------------------------------------------------------------------------- */

static json_t *golden(void)
{
    json_error_t error;
    json_t *run = json_load_file(HTH_TEST_GOLDEN, 0, &error);
    if (run == NULL)
        fail_msg("%s: %s", HTH_TEST_GOLDEN, error.text);
    return run;
}

static void open_page(struct world *w, int width, bool dark)
{
    browser_view(w->b, width, 900, dark);
    browser_script(w->b, true);
    browser_open(w->b, "");
    browser_until(w->b, READY);
}

#define LINK_SAYS(text) "document.getElementById('link').textContent.includes('" text "')"

/* Opens a page that listens to events, and that dials again at once when they end. */
static void go_live(struct world *w, int width)
{
    w->live = true;
    w->events = "retry: 20\n\n";
    open_page(w, width, false);
    browser_until(w->b, LINK_SAYS("no connection"));
}

static void no_complaints(struct world *w)
{
    if (browser_complaints(w->b)[0] != '\0')
        fail_msg("%s", browser_complaints(w->b));
}

static void use(struct world *w, json_t *run)
{
    json_decref(w->run);
    w->run = run;
    w->live = false;
    w->events = NULL;
    w->refusals = 0;
    w->mutate = false;
    browser_open(w->b, "nothing"); /* leaves the page before, whose requests may be under way */
    w->runs = w->nows = 0;
    w->sent = 0;
}

/* ---- views --------------------------------------------------------------------------------- */

/* Texts, buttons and pictures that cover each other, or do not fit into their box or the window. */
static const char faults[] =
    "(() => { const out = [], wide = document.documentElement.clientWidth;"
    "if (document.documentElement.scrollWidth > wide) out.push('the page scrolls sideways');"
    "const leaves = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() &&"
    "  (['CANVAS', 'BUTTON', 'INPUT', 'PROGRESS', 'IMG'].includes(e.tagName) ||"
    "   [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim() !== '')));"
    "const boxes = leaves.map(e => { const range = document.createRange();"
    "  range.selectNodeContents(e); const own = ['CANVAS', 'BUTTON', 'INPUT', 'PROGRESS', 'IMG']"
    "  .includes(e.tagName); return (own ? e : range).getBoundingClientRect(); });"
    "leaves.forEach((e, i) => { const r = boxes[i], in_scroll = e.closest('.scroll');"
    "  if (!in_scroll && r.width > 0 && (r.left < -1 || r.right > wide + 1))"
    "    out.push('beyond the window: ' + e.outerHTML.slice(0, 80));"
    "  for (let j = i + 1; j < leaves.length; j++) { const f = leaves[j], s = boxes[j];"
    "    if (e.contains(f) || f.contains(e) || r.width * s.width === 0) continue;"
    "    if (in_scroll || f.closest('.scroll')) continue;"
    "    const x = Math.min(r.right, s.right) - Math.max(r.left, s.left),"
    "      y = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);"
    "    if (x > 1 && y > 1) out.push('overlap: ' + e.outerHTML.slice(0, 80) + ' and ' +"
    "      f.outerHTML.slice(0, 80)); } });"
    "return out.join('\\n'); })()";

static void no_faults(struct world *w, const char *what)
{
    json_t *found = browser_eval(w->b, faults);
    if (json_string_length(found) > 0)
        fail_msg("%s: %s", what, json_string_value(found));
    json_decref(found);
}

/* By hand: axe-core is no part of hearth. */
static void ask_axe(struct world *w, const char *what)
{
    const char *path = getenv("HTH_TEST_AXE");
    if (path == NULL)
        return;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *source = calloc(1, 1 << 20);
    (void)!fread(source, 1, (1 << 20) - 1, file);
    fclose(file);
    json_decref(browser_eval(w->b, source));
    free(source);
    json_t *found = browser_eval(
        w->b, "axe.run().then(r => r.violations.map(v => v.impact + ' ' + v.id + ': ' + v.help +"
              "' ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 120) + (n.any[0]?.message ?? "
              "'')).join(' | ')).join('\\n'))");
    if (json_string_length(found) > 0)
        print_message("axe, %s:\n%s\n", what, json_string_value(found));
    json_decref(found);
}

static void keep_shot(struct world *w, const char *name)
{
    char path[256];
    const char *folder = getenv("HTH_TEST_SHOTS");
    if (folder == NULL)
        return;
    snprintf(path, sizeof(path), "%s/%s.png", folder, name);
    browser_shot(w->b, path, 0);
}

/* A phone that is turned, a window that is dragged: nothing keeps its old width. */
static void test_follows_the_windows_width(void **state)
{
    static const int widths[] = {1400, 360, 800, 360};
    struct world *w = *state;
    char fits[128];
    use(w, golden());
    open_page(w, 500, false);
    for (size_t i = 0; i < HTH_ARRAY_LEN(widths); i++) {
        browser_view(w->b, widths[i], 900, false);
        snprintf(fits, sizeof(fits),
                 "[...document.querySelectorAll('canvas')].every(c => c.getBoundingClientRect()"
                 ".right <= %d)",
                 widths[i]);
        browser_until(w->b, fits);
        no_faults(w, "a window of another width");
    }
    no_complaints(w);
}

static void test_fits_every_window(void **state)
{
    static const int widths[] = {360, 800, 1400};
    struct world *w = *state;
    char name[64];
    use(w, golden());
    for (int dark = 0; dark < 2; dark++) {
        for (size_t i = 0; i < HTH_ARRAY_LEN(widths); i++) {
            snprintf(name, sizeof(name), "page-%d-%s", widths[i], dark ? "dark" : "light");
            open_page(w, widths[i], dark);
            no_faults(w, name);
            ask_axe(w, name);
            keep_shot(w, name);
            no_complaints(w);
        }
    }
}

/* ---- the figures --------------------------------------------------------------------------- */

static void shows(struct world *w, const char *selector, const char *text)
{
    char expression[512];
    snprintf(expression, sizeof(expression),
             "[...document.querySelectorAll('%s')].some(e => e.textContent.includes('%s'))",
             selector, text);
    if (browser_number(w->b, expression) != 1)
        fail_msg("%s does not show %s", selector, text);
}

/* The same once it is drawn. */
static void shows_soon(struct world *w, const char *selector, const char *text)
{
    char expression[512];
    snprintf(expression, sizeof(expression),
             "[...document.querySelectorAll('%s')].some(e => e.textContent.includes('%s'))",
             selector, text);
    browser_until(w->b, expression);
}

static void test_shows_the_figures(void **state)
{
    static const char *const rows[][2] = {
        {"#state", "training"},
        {"#since", "64.5 % of the schedule"},
        {"#tiles", "1,290"},
        {"#tiles", "0.4897"},
        {"#tiles", "330,496"},
        {"#tiles", "28 of 32"},
        {"#tiles .alarm", "4 missing"},
        {"#join code", "hearth serve --run fashion.yaml --join ADDR:PORT"},
        {"#layers h3", "ffn0 · 4×4 · 15 of 16"},
        {"#peers tr:nth-child(1)", "22.6 samples/s"},
        {"#peers tr:nth-child(5)", "can\\'t save for 72 s"},
        {"#peers tr:nth-child(7)", "silent for 41 s"},
        {"#events li:nth-child(1)", "node 0badf00d left"},
        {"#gallery li:nth-child(2)", "blue <heart>"},
        {"#gallery-step", "at step 1,200"},
    };
    struct world *w = *state;
    use(w, golden());
    open_page(w, 1000, false);
    for (size_t i = 0; i < HTH_ARRAY_LEN(rows); i++)
        shows(w, rows[i][0], rows[i][1]);
    browser_until(w->b, "[...document.querySelectorAll('#gallery img')].every(i => "
                        "i.complete && i.naturalWidth === 64)");
    assert_true(browser_number(w->b, "document.querySelector('#gallery .d1').alt === "
                                     "'drawing: blue <heart>'"));
    /* The newest point of each line is the run's. */
    assert_true(browser_number(w->b, "Chart.getChart('loss').data.datasets[0].data.at(-1).x") >=
                1280);
    assert_true(browser_number(w->b, "Chart.getChart('loss').data.datasets[1].data.length") == 3);
    assert_true(browser_number(w->b, "Chart.getChart('people').data.datasets[1].data.at(-1).y") ==
                3);
    no_complaints(w);
}

static void test_works_by_keyboard(void **state)
{
    struct world *w = *state;
    use(w, golden());
    open_page(w, 1000, false);
    browser_key(w->b, "Tab");
    browser_key(w->b, "Enter");
    assert_true(browser_number(w->b, "document.activeElement.tagName === 'BUTTON'"));
    browser_until(w->b, "document.activeElement.textContent !== 'Copy'");
    assert_true(browser_number(
        w->b, "getSelection().toString() === document.querySelector('#join code').textContent"));
    browser_key(w->b, "Tab");
    browser_key(w->b, "ArrowRight");
    assert_true(browser_number(w->b, "document.activeElement.value === 'samples'"));
    /* Test points have steps only: their samples lie between those of the rows around. */
    assert_close(browser_number(w->b, "Chart.getChart('loss').data.datasets[1].data[2].x"), 256000,
                 0.02, 0);
    browser_key(w->b, "ArrowRight");
    assert_close(browser_number(w->b, "Chart.getChart('loss').data.datasets[1].data[2].x"),
                 1795767000, 0, 0.5);
    browser_key(w->b, "Tab");
    shows(w, "#cover-hint", "ffn0.0.0: 1 host: 11aa22bb");
    browser_key(w->b, "ArrowDown");
    browser_key(w->b, "ArrowRight");
    browser_key(w->b, "ArrowRight");
    shows(w, "#cover-hint", "ffn0.1.2: 2 hosts: 3c4d5e6f, 11aa22bb");
    browser_key(w->b, "Tab");
    shows(w, "#cover-hint", "ffn1.0.0: 1 host: 11aa22bb");
    no_complaints(w);
}

static void test_points_at_an_expert(void **state)
{
    struct world *w = *state;
    use(w, golden());
    open_page(w, 1000, true);
    json_decref(browser_eval(
        w->b, "document.querySelector('#layers canvas').scrollIntoView({block: 'center'})"));
    double x = browser_number(
        w->b, "document.querySelector('#layers canvas').getBoundingClientRect().right");
    double y = browser_number(
        w->b, "document.querySelector('#layers canvas').getBoundingClientRect().bottom");
    browser_point(w->b, x - 4, y - 4);
    shows(w, "#cover-hint", "ffn0.3.3: no host");
    browser_point(w->b, x - 4, y - 24);
    shows(w, "#cover-hint", "ffn0.2.3: 1 host: 3c4d5e6f");
}

static void test_numbers_without_script(void **state)
{
    struct world *w = *state;
    use(w, golden());
    browser_view(w->b, 360, 900, false);
    browser_script(w->b, false);
    browser_open(w->b, "");
    json_t *html = browser_eval(w->b, "document.getElementById('numbers').innerText");
    static const char *const texts[] = {"fashion",
                                        "1,290 of 2,000, 64.5 %",
                                        "0.4897",
                                        "0.5123, 83.1 % right",
                                        "28 of 32 served, 4 missing",
                                        "ffn1.3.0, ffn1.3.1, ffn1.3.3",
                                        "host: silent for 41 s",
                                        "22.6 samples/s",
                                        "node 0badf00d left",
                                        "<img/src=x/onerror=alert(1)>",
                                        "hearth serve --run fashion.yaml"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(texts); i++) {
        if (strstr(json_string_value(html), texts[i]) == NULL)
            fail_msg("no '%s' in %s", texts[i], json_string_value(html));
    }
    json_decref(html);
    assert_true(browser_number(w->b, "document.documentElement.scrollWidth <= 360"));
    assert_true(browser_number(w->b, "document.getElementById('live').checkVisibility()") == 0);
    keep_shot(w, "page-360-no-script");
    no_complaints(w);
}

/* ---- staying new --------------------------------------------------------------------------- */

static void test_follows_events(void **state)
{
    struct world *w = *state;
    use(w, golden());
    go_live(w, 1000);
    json_object_set_new(w->run, "seq", json_integer(1441));
    json_object_set_new(w->run, "step", json_integer(1300));
    w->events = "event: now\ndata: "
                "{\"seq\":1441,\"point\":{\"t\":1795770010,\"step\":1300,\"samples\":332000,"
                "\"loss\":0.48,\"trainers\":3,\"hosts\":3,\"served\":27,\"samples_per_s\":33,"
                "\"rows_per_s\":130}}\n\n";
    browser_until(w->b, "document.getElementById('tiles').textContent.includes('1,300')");
    assert_int_equal(w->runs, 1);
    assert_int_equal(w->nows, 1);
    browser_until(w->b,
                  "Math.abs(Chart.getChart('loss').data.datasets[0].data.at(-1).y - 0.48) < 1e-6");
    /* An event that was missed: all is read again. */
    json_object_set_new(w->run, "seq", json_integer(1450));
    json_object_set_new(w->run, "step", json_integer(1400));
    w->events = "event: now\ndata: {\"seq\":1450,\"point\":{\"t\":1795770100,\"step\":1400}}\n\n";
    browser_until(w->b, "document.getElementById('tiles').textContent.includes('1,400')");
    assert_int_equal(w->runs, 2);
    /* A new test comes into the curve. */
    json_t *tests = json_object_get(w->run, "tests");
    json_array_append_new(json_object_get(tests, "t"), json_integer(1795770105));
    json_array_append_new(json_object_get(tests, "step"), json_integer(1405));
    json_array_append_new(json_object_get(tests, "loss"), json_real(0.25));
    json_object_set_new(json_object_get(w->run, "test"), "t", json_integer(1795770105));
    json_object_set_new(w->run, "seq", json_integer(1451));
    w->events = "event: now\ndata: {\"seq\":1451,\"point\":null}\n\n";
    browser_until(w->b, "Chart.getChart('loss').data.datasets[1].data.at(-1).y === 0.25");
    /* The monitor began anew, with its first answer. */
    json_object_set_new(w->run, "seq", json_integer(1));
    json_object_set_new(w->run, "step", json_integer(1500));
    w->events = "event: now\ndata: {\"seq\":1,\"point\":null}\n\n";
    browser_until(w->b, "document.getElementById('tiles').textContent.includes('1,500')");
}

/* Events that bring nothing new come from a monitor that waits for its run. */
static void test_says_that_the_run_is_lost(void **state)
{
    struct world *w = *state;
    use(w, golden());
    json_object_set_new(w->run, "period_s", json_real(0.01));
    go_live(w, 1000);
    json_object_set_new(w->run, "now_at_s",
                        json_real(json_number_value(json_object_get(w->run, "asked_at_s")) + 600));
    /* A connection that is refused would be said in its place: the browser dials much later. */
    w->events = "retry: 600000\nevent: now\ndata: {\"seq\":1440,\"point\":null}\n\n";
    browser_until(w->b, LINK_SAYS("the monitor lost the run 10 min ago"));
}

/* A browser never dials again where it was refused, as while too many read. */
static void test_dials_again_after_a_refusal(void **state)
{
    struct world *w = *state;
    use(w, golden());
    go_live(w, 1000);
    json_decref(browser_eval(w->b, "{ const wait = setTimeout; window.setTimeout = "
                                   "(f, ms) => wait(f, Math.min(ms, 50)); 0 }"));
    w->refusals = 1;
    for (; w->refusals > 0;)
        json_decref(browser_eval(w->b, "new Promise(done => setTimeout(done, 20))"));
    json_object_set_new(w->run, "seq", json_integer(1500));
    w->events = "event: now\ndata: {\"seq\":1500,\"point\":null}\n\n";
    browser_until(w->b, LINK_SAYS("new every 10 s"));
}

/* ---- strangers ----------------------------------------------------------------------------- */

static char *long_text(size_t len)
{
    char *text = calloc(1, len + 1);
    memset(text, 'W', len);
    return text;
}

static void test_names_are_inert(void **state)
{
    static const char markup[] =
        "<img src=x onerror=\"window.bad=1\"><script>window.bad=1</script>";
    static const char marks[] = "a\u202egnp.\u2066exe\x01\x1b[31m\x07";
    struct world *w = *state;
    json_t *run = golden();
    char *huge = long_text(65536);
    json_t *peers = json_object_get(run, "peers");
    json_object_set_new(json_array_get(peers, 0), "version", json_string(markup));
    json_object_set_new(json_array_get(peers, 1), "name", json_string(marks));
    json_object_set_new(json_array_get(peers, 2), "name", json_string(huge));
    json_object_set_new(run, "run", json_string(huge));
    json_object_set_new(run, "trouble", json_string(markup));
    json_object_set_new(json_object_get(run, "join"), "command", json_string(markup));
    json_object_set_new(json_array_get(json_object_get(run, "layers"), 0), "name",
                        json_string(markup));
    json_object_set_new(json_array_get(json_object_get(run, "events"), 7), "text",
                        json_string(huge));
    json_object_set_new(json_array_get(json_object_get(run, "events"), 6), "text",
                        json_string(marks));
    free(huge);
    json_t *gallery = json_object_get(run, "gallery");
    json_object_set_new(gallery, "picture", json_string("//evil/x.png"));
    json_object_set_new(json_array_get(json_object_get(gallery, "items"), 0), "prompt",
                        json_string(markup));
    json_object_set_new(json_array_get(json_object_get(gallery, "items"), 1), "text",
                        json_string(marks));
    use(w, run);
    open_page(w, 360, false);
    no_faults(w, "hostile names");
    no_complaints(w);
    shows(w, "#peers td", "<img src=x");
    shows(w, "#gallery li", "<img src=x");
    shows(w, "#gallery li", "a\ufffdgnp.\ufffdexe\ufffd\ufffd[31m\ufffd");
    shows(w, "#events span", "a\ufffdgnp.\ufffdexe\ufffd\ufffd[31m\ufffd");
    assert_true(browser_number(w->b, "window.bad === undefined"));
    assert_true(browser_number(w->b, "document.querySelectorAll('main img, main script').length") ==
                0);
    keep_shot(w, "page-360-hostile");
    browser_script(w->b, false);
    browser_open(w->b, "");
    shows(w, "#numbers td", "<img src=x");
    shows(w, "#numbers td", "a\ufffdgnp.\ufffdexe\ufffd\ufffd[31m\ufffd");
    assert_true(browser_number(w->b, "document.querySelectorAll('main img, main script').length") ==
                0);
    assert_true(browser_number(w->b, "document.documentElement.scrollWidth <= 360"));
    no_complaints(w);
}

/* Each event makes the page read another damaged run.json; the first is whole. */
static void test_damaged_runs_do_no_harm(void **state)
{
    enum { COUNT = HTH_TEST_FEW ? 10 : 60 };
    static char events[COUNT * 64];
    struct world *w = *state;
    size_t len = 0;
    use(w, golden());
    json_object_set_new(w->run, "seq", json_integer(1));
    go_live(w, 800);
    w->mutate = true;
    w->seed = 1;
    for (int i = 1; i <= COUNT; i++)
        len += (size_t)snprintf(events + len, sizeof(events) - len,
                                "event: now\ndata: {\"seq\":%d}\n\n", 100 * i);
    w->events = events;
    browser_until(w->b, "document.getElementById('link').textContent.includes('no connection')");
    for (unsigned was = 0; was != w->runs || was < COUNT / 2;) {
        was = w->runs;
        json_decref(browser_eval(w->b, "new Promise(done => setTimeout(done, 50))"));
    }
    assert_true(browser_number(w->b, "window.bad === undefined"));
    if (strstr(browser_complaints(w->b), "exception") != NULL)
        fail_msg("%s", browser_complaints(w->b));
    /* Then a good one: it shows what it should. */
    w->mutate = false;
    w->events = "event: now\ndata: {\"seq\":1000000}\n\n";
    shows_soon(w, "#tiles", "0.4897");
    shows_soon(w, "#layers h3", "ffn0 · 4×4 · 15 of 16");
    shows_soon(w, "#peers tr:nth-child(1)", "22.6 samples/s");
}

/* ---- size ---------------------------------------------------------------------------------- */

static json_t *numbers(size_t n, double first, double by, uint32_t spread, uint32_t *seed)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        double v =
            first + by * (double)i + (spread > 0 ? (double)(*seed >> 8) / 16777216.0 * spread : 0);
        json_array_append_new(all, json_real(round(v * 1e4) / 1e4));
    }
    return all;
}

/* A run of 10,000 experts and 500 peers after 90 days: as many rows as run.json may have. */
static json_t *large(void)
{
    enum { ROWS = 4040, PEERS = 500, EXPERTS = 10000 };
    static const char *const names[] = {"step",  "samples", "loss",          "trainers",
                                        "hosts", "served",  "samples_per_s", "rows_per_s"};
    uint32_t seed = 1;
    json_t *run = golden(), *peers = json_array(), *all = json_array(), *layer,
           *history = json_object();
    json_t *replicas = json_array(), *hosts = json_array();
    char id[16];
    for (int p = 0; p < PEERS; p++) {
        json_t *peer =
            json_deep_copy(json_array_get(json_object_get(run, "peers"), p < 200 ? 0 : 3));
        seed = seed * 1664525u + 1013904223u;
        snprintf(id, sizeof(id), "%08x", seed);
        json_object_set_new(peer, "id", json_string(id));
        json_object_set_new(peer, "rows", json_integer(seed >> 8));
        json_array_append_new(peers, peer);
    }
    json_object_set_new(run, "peers", peers);
    for (int e = 0; e < EXPERTS; e++) {
        json_t *of = json_array();
        seed = seed * 1664525u + 1013904223u;
        uint32_t n = (seed >> 24) < 20 ? 0 : 1 + (seed >> 30);
        for (uint32_t h = 0; h < n; h++)
            json_array_append_new(of, json_integer(200 + (e / 34 + (int)(h * 97)) % 300));
        json_array_append_new(hosts, of);
        json_array_append_new(replicas, json_integer(n));
    }
    layer = json_copy(json_array_get(json_object_get(run, "layers"), 0));
    json_t *grid = json_array();
    json_array_append_new(grid, json_integer(100));
    json_array_append_new(grid, json_integer(100));
    json_object_set_new(layer, "grid", grid);
    json_object_set_new(layer, "replicas", replicas);
    json_object_set_new(layer, "hosts", hosts);
    json_array_append_new(all, layer);
    json_object_set_new(run, "layers", all);
    json_object_set_new(history, "t", numbers(ROWS, 1788000000, 1900, 0, &seed));
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++)
        json_object_set_new(history, names[i],
                            numbers(ROWS, 10, i < 2 ? 32 : 0, i < 2 ? 0 : 40, &seed));
    json_object_set_new(run, "history", history);
    return run;
}

/* Opens the page, points at the grid and scrolls. Returns the longest task in milliseconds. */
static double look_around(struct world *w)
{
    char move[128];
    browser_open(w->b, "nothing");
    w->sent = 0;
    browser_trace_begin(w->b);
    browser_open(w->b, "");
    browser_until(w->b, READY);
    for (int i = 0; i < 40; i++) {
        snprintf(move, sizeof(move), "window.scrollTo(0, %d)", 40 * i);
        json_decref(browser_eval(w->b, move));
        browser_point(w->b, 60 + 12 * i, 300 + 7 * i);
    }
    return browser_trace_end(w->b);
}

static void test_large_run_is_light(void **state)
{
    struct world *w = *state;
    double longest_ms = INFINITY, paint_ms = INFINITY;
    use(w, large());
    browser_view(w->b, 1400, 900, false);
    browser_script(w->b, true);
    /* Other processes slow a task down: the best of a few looks counts. */
    for (int i = 0; i < 5 && (longest_ms > 100 || paint_ms > 1000); i++) {
        longest_ms = fmin(longest_ms, look_around(w));
        paint_ms =
            fmin(paint_ms,
                 browser_number(
                     w->b, "performance.getEntriesByName('first-contentful-paint')[0].startTime"));
    }
    print_message(
        "10,000 experts, 500 peers: %zu bytes, first paint %.0f ms, longest task %.0f ms\n",
        w->sent, paint_ms, longest_ms);
    keep_shot(w, "page-1400-large");
    no_faults(w, "a large run");
    no_complaints(w);
    assert_true(w->sent <= 250000);
    assert_true(longest_ms <= 100);
    assert_true(paint_ms <= 1000);
}

/* For tools/screenshot: not a test, but all that it needs is here. */
static void picture_a_run(void **state)
{
    struct world *w = *state;
    json_t *run = json_load_file(getenv("HTH_TEST_RUN"), 0, NULL);
    assert_non_null(run);
    use(w, run);
    open_page(w, 1000, false);
    browser_shot(w->b, getenv("HTH_TEST_PICTURE"), atoi(getenv("HTH_TEST_HEIGHT")));
}

int main(void)
{
    static struct world w;
    const struct CMUnitTest picture[] = {cmocka_unit_test_prestate(picture_a_run, &w)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_fits_every_window, &w),
        cmocka_unit_test_prestate(test_follows_the_windows_width, &w),
        cmocka_unit_test_prestate(test_shows_the_figures, &w),
        cmocka_unit_test_prestate(test_works_by_keyboard, &w),
        cmocka_unit_test_prestate(test_points_at_an_expert, &w),
        cmocka_unit_test_prestate(test_numbers_without_script, &w),
        cmocka_unit_test_prestate(test_follows_events, &w),
        cmocka_unit_test_prestate(test_says_that_the_run_is_lost, &w),
        cmocka_unit_test_prestate(test_dials_again_after_a_refusal, &w),
        cmocka_unit_test_prestate(test_names_are_inert, &w),
        cmocka_unit_test_prestate(test_damaged_runs_do_no_harm, &w),
        cmocka_unit_test_prestate(test_large_run_is_light, &w),
    };
    static const uint8_t rgb[64 * 8 * 3];
    assert_int_equal(hth_picture_png(rgb, 64, 8, &w.png), HTH_OK);
    w.b = browser_new(serve, &w);
    if (w.b == NULL) {
        print_message("no Chromium here: the page is not tested\n");
        return 0;
    }
    int failed = getenv("HTH_TEST_RUN") != NULL ? cmocka_run_group_tests(picture, NULL, NULL)
                                                : cmocka_run_group_tests(tests, NULL, NULL);
    browser_free(w.b);
    json_decref(w.run);
    free(w.body);
    hth_blob_unref(w.png);
    return failed;
}
