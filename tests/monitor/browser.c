/* SPDX-License-Identifier: Apache-2.0 */
/* browser.c: a child process, JSON messages that end with a zero byte, and their answers. */
#define _XOPEN_SOURCE 700
#include "monitor/browser.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <openssl/evp.h>

struct browser {
    pid_t pid;
    int to, from; /* pipes */
    char folder[64];
    char session[64]; /* of the page */
    int id;           /* of the last message sent */
    char *in;         /* bytes of messages that are not read yet */
    size_t in_len, in_size;
    browser_serve *serve;
    void *arg;
    bool loaded, traced;
    struct thread { /* seen in the trace */
        json_int_t pid, tid;
        bool page; /* runs a page's script and layout */
        double longest_us;
    } thread[256];
    size_t threads;
    char complaints[8192];
};

/* ---- the process --------------------------------------------------------------------------- */

static const char *find_program(void)
{
    static const char *const names[] = {"/usr/bin/chromium", "/usr/bin/chromium-browser",
                                        "/usr/bin/google-chrome"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(names); i++) {
        if (access(names[i], X_OK) == 0)
            return names[i];
    }
    return NULL;
}

/* In the child: the protocol's pipes are descriptors 3 and 4. */
static void become_browser(const char *program, int in, int out, const char *folder)
{
    char data[96];
    int null = open("/dev/null", O_RDWR);
    int high_in = fcntl(in, F_DUPFD, 10), high_out = fcntl(out, F_DUPFD, 10);
    snprintf(data, sizeof(data), "--user-data-dir=%s", folder);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    dup2(high_in, 3);
    dup2(high_out, 4);
    setpgid(0, 0);
    setenv("HOME", folder, 1);
    execl(program, program, "--headless", "--no-sandbox", "--disable-gpu",
          "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
          "--disable-background-networking", "--disable-component-update", "--disable-sync",
          "--hide-scrollbars", "--mute-audio", "--remote-debugging-pipe", data, "about:blank",
          (char *)NULL);
    _exit(127);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    (void)remove(path); /* what is gone already is no fault */
    return 0;
}

/* ---- messages ------------------------------------------------------------------------------ */

static void post(struct browser *b, const char *method, json_t *params, bool to_page)
{
    json_t *m = json_object();
    json_object_set_new(m, "id", json_integer(++b->id));
    json_object_set_new(m, "method", json_string(method));
    json_object_set_new(m, "params", params != NULL ? params : json_object());
    if (to_page)
        json_object_set_new(m, "sessionId", json_string(b->session));
    char *text = json_dumps(m, JSON_COMPACT);
    size_t len = strlen(text) + 1, sent = 0;
    while (sent < len) {
        ssize_t n = write(b->to, text + sent, len - sent);
        if (n <= 0)
            fail_msg("Chromium ended");
        sent += (size_t)n;
    }
    free(text);
    json_decref(m);
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

static void complain(struct browser *b, const char *what, const char *text)
{
    size_t len = strlen(b->complaints);
    snprintf(b->complaints + len, sizeof(b->complaints) - len, "%s: %s\n", what, text);
}

static void header(json_t *headers, const char *name, const char *value)
{
    json_t *h = json_object();
    json_object_set_new(h, "name", json_string(name));
    json_object_set_new(h, "value", json_string(value));
    json_array_append_new(headers, h);
}

static void on_request(struct browser *b, const json_t *params)
{
    const char *url = text_of(json_object_get(params, "request"), "url");
    struct browser_answer a = {0};
    json_t *reply = json_object(), *headers = json_array();
    json_object_set(reply, "requestId", json_object_get(params, "requestId"));
    if (strncmp(url, BROWSER_SITE, strlen(BROWSER_SITE)) == 0)
        b->serve(b->arg, url + strlen(BROWSER_SITE), &a);
    else
        complain(b, "request elsewhere", url);
    if (a.status == 0) {
        json_object_set_new(reply, "errorReason", json_string("ConnectionRefused"));
        json_decref(headers);
        post(b, "Fetch.failRequest", reply, true);
        return;
    }
    header(headers, "Content-Type", a.type);
    char *body = malloc(a.len * 4 / 3 + 8);
    EVP_EncodeBlock((unsigned char *)body, a.body, (int)a.len);
    json_object_set_new(reply, "responseCode", json_integer(a.status));
    json_object_set_new(reply, "responseHeaders", headers);
    json_object_set_new(reply, "body", json_string(body));
    post(b, "Fetch.fulfillRequest", reply, true);
    free(body);
}

static struct thread *thread_of(struct browser *b, const json_t *event)
{
    json_int_t pid = json_integer_value(json_object_get(event, "pid"));
    json_int_t tid = json_integer_value(json_object_get(event, "tid"));
    size_t i = 0;
    while (i < b->threads && (b->thread[i].pid != pid || b->thread[i].tid != tid))
        i++;
    assert_true(i < HTH_ARRAY_LEN(b->thread));
    if (i == b->threads)
        b->thread[b->threads++] = (struct thread){.pid = pid, .tid = tid};
    return &b->thread[i];
}

static void on_trace(struct browser *b, const json_t *params)
{
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(params, "value"), i, event)
    {
        struct thread *t = thread_of(b, event);
        const json_t *own = json_object_get(event, "tdur"), *wall = json_object_get(event, "dur");
        double us = json_number_value(own != NULL ? own : wall);
        if (strcmp(text_of(event, "name"), "thread_name") == 0)
            t->page =
                strcmp(text_of(json_object_get(event, "args"), "name"), "CrRendererMain") == 0;
        else if (strstr(text_of(event, "name"), "RunTask") != NULL)
            t->longest_us = us > t->longest_us ? us : t->longest_us;
    }
}

static void on_event(struct browser *b, const char *method, const json_t *params)
{
    if (strcmp(method, "Fetch.requestPaused") == 0) {
        on_request(b, params);
    } else if (strcmp(method, "Page.loadEventFired") == 0) {
        b->loaded = true;
    } else if (strcmp(method, "Runtime.exceptionThrown") == 0) {
        const json_t *details = json_object_get(params, "exceptionDetails");
        complain(b, "exception", text_of(json_object_get(details, "exception"), "description"));
    } else if (strcmp(method, "Log.entryAdded") == 0) {
        const json_t *entry = json_object_get(params, "entry");
        if (strcmp(text_of(entry, "level"), "info") != 0 &&
            strcmp(text_of(entry, "level"), "verbose") != 0)
            complain(b, "console", text_of(entry, "text"));
    } else if (strcmp(method, "Runtime.consoleAPICalled") == 0) {
        const json_t *first = json_array_get(json_object_get(params, "args"), 0);
        complain(b, "console", text_of(first, "value"));
    } else if (strcmp(method, "Tracing.dataCollected") == 0) {
        on_trace(b, params);
    } else if (strcmp(method, "Tracing.tracingComplete") == 0) {
        b->traced = true;
    }
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Reads one message, or fails. */
static json_t *next_message(struct browser *b)
{
    double end_s = now_s() + BROWSER_WAIT_S;
    char *stop = NULL;
    while (b->in_len == 0 || (stop = memchr(b->in, '\0', b->in_len)) == NULL) {
        struct pollfd p = {.fd = b->from, .events = POLLIN};
        if (b->in_size - b->in_len < 65536) {
            b->in_size = 2 * b->in_size + 65536;
            b->in = realloc(b->in, b->in_size);
        }
        if (now_s() > end_s || poll(&p, 1, BROWSER_WAIT_S * 1000) != 1)
            fail_msg("Chromium says nothing for %d s", BROWSER_WAIT_S);
        ssize_t n = read(b->from, b->in + b->in_len, b->in_size - b->in_len);
        if (n <= 0)
            fail_msg("Chromium ended");
        b->in_len += (size_t)n;
    }
    json_error_t error;
    json_t *m = json_loads(b->in, 0, &error);
    if (m == NULL)
        fail_msg("Chromium said no JSON: %s", error.text);
    b->in_len -= (size_t)(stop + 1 - b->in);
    memmove(b->in, stop + 1, b->in_len);
    return m;
}

/* Handles one message. Returns the result, to be freed, if it answers message `id`. */
static json_t *step(struct browser *b, int id)
{
    json_t *m = next_message(b), *result = NULL;
    const char *method = text_of(m, "method");
    if (method[0] != '\0')
        on_event(b, method, json_object_get(m, "params"));
    else if (json_integer_value(json_object_get(m, "id")) == id)
        result = json_incref(
            json_object_get(m, json_object_get(m, "error") != NULL ? "error" : "result"));
    json_decref(m);
    return result;
}

static json_t *call(struct browser *b, const char *method, json_t *params, bool to_page)
{
    json_t *result;
    post(b, method, params, to_page);
    int id = b->id;
    do
        result = step(b, id);
    while (result == NULL);
    const char *error = text_of(result, "message");
    if (error[0] != '\0')
        fail_msg("%s: %s", method, error);
    return result;
}

static void tell(struct browser *b, const char *method, json_t *params)
{
    json_decref(call(b, method, params, true));
}

/* {name: value} of a text. */
static json_t *one(const char *name, json_t *value)
{
    json_t *o = json_object();
    json_object_set_new(o, name, value);
    return o;
}

/* ---- begin and end ------------------------------------------------------------------------- */

static void attach(struct browser *b)
{
    json_t *made = call(b, "Target.createTarget", one("url", json_string("about:blank")), false);
    json_t *params = one("targetId", json_string(text_of(made, "targetId")));
    json_object_set_new(params, "flatten", json_true());
    json_t *attached = call(b, "Target.attachToTarget", params, false);
    snprintf(b->session, sizeof(b->session), "%s", text_of(attached, "sessionId"));
    json_decref(attached);
    json_decref(made);
    tell(b, "Page.enable", NULL);
    tell(b, "Runtime.enable", NULL);
    tell(b, "Log.enable", NULL);
    tell(b, "Fetch.enable", NULL);
}

struct browser *browser_new(browser_serve *serve, void *arg)
{
    const char *program = find_program();
    int to[2], from[2];
    if (program == NULL)
        return NULL;
    struct browser *b = calloc(1, sizeof(*b));
    b->serve = serve;
    b->arg = arg;
    snprintf(b->folder, sizeof(b->folder), "/tmp/hearth-browser-XXXXXX");
    assert_non_null(mkdtemp(b->folder));
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    b->to = to[1];
    b->from = from[0];
    fcntl(b->to, F_SETFD, FD_CLOEXEC);
    fcntl(b->from, F_SETFD, FD_CLOEXEC);
    signal(SIGPIPE, SIG_IGN);
    b->pid = fork();
    assert_true(b->pid >= 0);
    if (b->pid == 0)
        become_browser(program, to[0], from[1], b->folder);
    close(to[0]);
    close(from[1]);
    attach(b);
    return b;
}

void browser_free(struct browser *b)
{
    kill(-b->pid, SIGKILL);
    waitpid(b->pid, NULL, 0);
    close(b->to);
    close(b->from);
    nftw(b->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(b->in);
    free(b);
}

/* ---- the page ------------------------------------------------------------------------------ */

void browser_view(struct browser *b, int width, int height, bool dark)
{
    json_t *size = one("width", json_integer(width)), *media = json_object(), *all = json_array();
    json_object_set_new(size, "height", json_integer(height));
    json_object_set_new(size, "deviceScaleFactor", json_integer(1));
    json_object_set_new(size, "mobile", json_false());
    tell(b, "Emulation.setDeviceMetricsOverride", size);
    json_object_set_new(media, "name", json_string("prefers-color-scheme"));
    json_object_set_new(media, "value", json_string(dark ? "dark" : "light"));
    json_array_append_new(all, media);
    tell(b, "Emulation.setEmulatedMedia", one("features", all));
}

void browser_script(struct browser *b, bool on)
{
    tell(b, "Emulation.setScriptExecutionDisabled", one("value", json_boolean(!on)));
}

void browser_open(struct browser *b, const char *path)
{
    char url[256];
    snprintf(url, sizeof(url), "%s%s", BROWSER_SITE, path);
    b->complaints[0] = '\0';
    b->loaded = false;
    tell(b, "Page.navigate", one("url", json_string(url)));
    while (!b->loaded)
        json_decref(step(b, -1));
}

json_t *browser_eval(struct browser *b, const char *expression)
{
    json_t *params = one("expression", json_string(expression));
    json_object_set_new(params, "awaitPromise", json_true());
    json_object_set_new(params, "returnByValue", json_true());
    json_t *answer = call(b, "Runtime.evaluate", params, true);
    const json_t *details = json_object_get(answer, "exceptionDetails");
    if (details != NULL)
        fail_msg("%s: %s", expression,
                 text_of(json_object_get(details, "exception"), "description"));
    json_t *value = json_incref(json_object_get(json_object_get(answer, "result"), "value"));
    json_decref(answer);
    return value;
}

double browser_number(struct browser *b, const char *expression)
{
    json_t *value = browser_eval(b, expression);
    if (!json_is_number(value) && !json_is_boolean(value))
        fail_msg("%s is no number", expression);
    double number = json_is_true(value) ? 1 : json_number_value(value);
    json_decref(value);
    return number;
}

void browser_until(struct browser *b, const char *expression)
{
    double end_s = now_s() + BROWSER_WAIT_S;
    while (browser_number(b, expression) != 1) {
        if (now_s() > end_s)
            fail_msg("%s is not true after %d s; complaints: %s", expression, BROWSER_WAIT_S,
                     b->complaints);
        json_decref(browser_eval(b, "new Promise(done => setTimeout(done, 10))"));
    }
}

void browser_key(struct browser *b, const char *key)
{
    static const char *const types[] = {"keyDown", "keyUp"};
    static const struct {
        const char *key;
        int code;
    } codes[] = {{"Tab", 9},      {"Enter", 13},      {"ArrowLeft", 37},
                 {"ArrowUp", 38}, {"ArrowRight", 39}, {"ArrowDown", 40}};
    for (size_t i = 0; i < HTH_ARRAY_LEN(types); i++) {
        json_t *params = one("type", json_string(types[i]));
        json_object_set_new(params, "key", json_string(key));
        if (strcmp(key, "Enter") == 0 && i == 0)
            json_object_set_new(params, "text", json_string("\r"));
        for (size_t c = 0; c < HTH_ARRAY_LEN(codes); c++) {
            if (strcmp(key, codes[c].key) == 0)
                json_object_set_new(params, "windowsVirtualKeyCode", json_integer(codes[c].code));
        }
        tell(b, "Input.dispatchKeyEvent", params);
    }
}

void browser_point(struct browser *b, double x, double y)
{
    json_t *params = one("type", json_string("mouseMoved"));
    json_object_set_new(params, "x", json_integer((json_int_t)x));
    json_object_set_new(params, "y", json_integer((json_int_t)y));
    tell(b, "Input.dispatchMouseEvent", params);
}

const char *browser_complaints(const struct browser *b)
{
    return b->complaints;
}

void browser_shot(struct browser *b, const char *path, int height)
{
    json_t *metrics = call(b, "Page.getLayoutMetrics", NULL, true);
    json_t *params = one("captureBeyondViewport", json_true());
    json_t *clip = json_copy(json_object_get(metrics, "cssContentSize"));
    json_object_set_new(clip, "scale", json_integer(1));
    if (height > 0)
        json_object_set_new(clip, "height", json_integer(height));
    json_object_set_new(params, "clip", clip);
    json_t *answer = call(b, "Page.captureScreenshot", params, true);
    json_decref(metrics);
    const char *data = text_of(answer, "data");
    size_t len = strlen(data);
    unsigned char *png = malloc(len + 1);
    int bytes = EVP_DecodeBlock(png, (const unsigned char *)data, (int)len);
    FILE *file = fopen(path, "wb");
    assert_true(file != NULL && bytes > 0);
    fwrite(png, 1, (size_t)bytes, file);
    fclose(file);
    free(png);
    json_decref(answer);
}

void browser_trace_begin(struct browser *b)
{
    b->traced = false;
    b->threads = 0;
    json_decref(call(
        b, "Tracing.start",
        one("categories", json_string("toplevel,disabled-by-default-devtools.timeline")), false));
}

double browser_trace_end(struct browser *b)
{
    json_decref(call(b, "Tracing.end", NULL, false));
    while (!b->traced)
        json_decref(step(b, -1));
    double longest_us = 0;
    for (size_t i = 0; i < b->threads; i++) {
        if (b->thread[i].page && b->thread[i].longest_us > longest_us)
            longest_us = b->thread[i].longest_us;
    }
    assert_true(longest_us > 0);
    return longest_us / 1000;
}
