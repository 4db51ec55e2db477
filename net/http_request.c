/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "net/http_request.h"

#include "core/limits.h"

#include <string.h>
#include <strings.h>

/* A piece of the head. */
struct text {
    const char *p;
    size_t len;
};

static bool is(struct text t, const char *word)
{
    return t.len == strlen(word) && strncasecmp(t.p, word, t.len) == 0;
}

static struct text trim(struct text t)
{
    while (t.len > 0 && (*t.p == ' ' || *t.p == '\t')) {
        t.p++;
        t.len--;
    }
    while (t.len > 0 && (t.p[t.len - 1] == ' ' || t.p[t.len - 1] == '\t'))
        t.len--;
    return t;
}

/* Takes what is before the first `sep` off `from`, and the separator; false: nothing is left. */
static bool next(struct text *from, char sep, struct text *out)
{
    if (from->len == 0)
        return false;
    const char *at = memchr(from->p, sep, from->len);
    size_t n = at != NULL ? (size_t)(at - from->p) : from->len, skip = at != NULL ? n + 1 : n;
    *out = (struct text){from->p, n};
    from->p += skip;
    from->len -= skip;
    return true;
}

/* Copies a text that fits and tells so. */
static bool keep_text(struct text t, char *out, size_t size)
{
    if (t.len >= size)
        return false;
    memcpy(out, t.p, t.len);
    out[t.len] = '\0';
    return true;
}

/* Takes one line, which may end with CR LF or LF, and has no other control character but a tab. */
static bool next_line(struct text *from, struct text *line)
{
    if (!next(from, '\n', line))
        return false;
    if (line->len > 0 && line->p[line->len - 1] == '\r')
        line->len--;
    for (size_t i = 0; i < line->len; i++) {
        unsigned char c = (unsigned char)line->p[i];
        if ((c < ' ' && c != '\t') || c == 0x7F)
            return false;
    }
    return true;
}

static int read_first(struct text line, struct hth_http_request *out)
{
    struct text method, target, path, version;
    if (!next(&line, ' ', &method) || !next(&line, ' ', &target) || !next(&line, ' ', &version) ||
        line.len > 0 || version.len < 5 || strncmp(version.p, "HTTP/", 5) != 0)
        return 400;
    if (!is(version, "HTTP/1.1") && !is(version, "HTTP/1.0"))
        return 505;
    out->keep = is(version, "HTTP/1.1");
    out->head = method.len == 4 && strncmp(method.p, "HEAD", 4) == 0;
    if (!out->head && (method.len != 3 || strncmp(method.p, "GET", 3) != 0))
        return 405;
    if (!next(&target, '?', &path) || path.p[0] != '/')
        return 400;
    /* No page has so long a name. */
    return keep_text(path, out->path, sizeof(out->path)) ? 200 : 404;
}

/* "gzip" or "*" among the codings, and not with a weight of 0. */
static bool takes_gzip(struct text list)
{
    struct text coding, name;
    while (next(&list, ',', &coding)) {
        if (!next(&coding, ';', &name) || !is(trim(name), "gzip"))
            continue;
        coding = trim(coding);
        return !(coding.len >= 3 && strncasecmp(coding.p, "q=0", 3) == 0 &&
                 strspn(coding.p + 3, ".0") >= coding.len - 3);
    }
    return false;
}

static bool has_word(struct text list, const char *word)
{
    struct text one;
    while (next(&list, ',', &one))
        if (is(trim(one), word))
            return true;
    return false;
}

static int read_header(struct text line, struct hth_http_request *out)
{
    struct text name, value;
    if (memchr(line.p, ':', line.len) == NULL || *line.p == ' ' || *line.p == '\t')
        return 400;
    (void)next(&line, ':', &name);
    value = trim(line);
    if (name.len == 0 || memchr(name.p, ' ', name.len) != NULL)
        return 400;
    if (is(name, "Host")) {
        bool first = out->host[0] == '\0' && value.len > 0;
        return first && keep_text(value, out->host, sizeof(out->host)) ? 200 : 400;
    }
    if (is(name, "Transfer-Encoding") || (is(name, "Content-Length") && !is(value, "0")))
        return 413;
    if (is(name, "Accept-Encoding"))
        out->gzip = takes_gzip(value);
    if (is(name, "If-None-Match") && !keep_text(value, out->etag, sizeof(out->etag)))
        out->etag[0] = '\0';
    if (is(name, "Connection"))
        out->keep = out->keep && !has_word(value, "close");
    return 200;
}

/* The bytes of the head with its empty line; 0: it has not ended yet. */
static size_t head_bytes(const char *data, size_t len)
{
    for (const char *p = data, *end = data + len;
         (p = memchr(p, '\n', (size_t)(end - p))) != NULL;) {
        p++;
        size_t left = (size_t)(end - p);
        if (left >= 1 && p[0] == '\n')
            return (size_t)(p - data) + 1;
        if (left >= 2 && p[0] == '\r' && p[1] == '\n')
            return (size_t)(p - data) + 2;
    }
    return 0;
}

int hth_http_request_read(const char *data, size_t len, struct hth_http_request *out)
{
    struct text rest, line;
    memset(out, 0, sizeof(*out));
    /* A method has capital letters: what begins otherwise, as TLS does, never becomes a request. */
    if (len > 0 && (data[0] < 'A' || data[0] > 'Z'))
        return 400;
    out->bytes = head_bytes(data, HTH_MIN(len, (size_t)HTH_HTTP_REQUEST_BYTES_MAX));
    if (out->bytes == 0)
        return len >= HTH_HTTP_REQUEST_BYTES_MAX ? 431 : 0;
    rest = (struct text){data, out->bytes};
    int status = next_line(&rest, &line) ? read_first(line, out) : 400;
    bool needs_host = out->keep; /* HTTP/1.1 */
    while (status == 200 && rest.len > 0) {
        if (!next_line(&rest, &line))
            return 400;
        if (line.len > 0)
            status = read_header(line, out);
    }
    if (status == 200 && needs_host && out->host[0] == '\0')
        return 400;
    return status;
}
