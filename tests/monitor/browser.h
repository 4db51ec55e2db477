/* SPDX-License-Identifier: Apache-2.0 */
/*
 * browser.h: headless Chromium for tests of pages, driven by its own protocol over two pipes.
 *
 * There is no server and no network: the test answers each request of the page itself, so it also
 * sees requests that should not be. Warnings and errors in the page's console are kept, and so are
 * exceptions in its script. Chromium gets a folder of its own below /tmp.
 *
 * A function that waits more than BROWSER_WAIT_S fails the test. Single-threaded.
 */
#ifndef HTH_TESTS_MONITOR_BROWSER_H
#define HTH_TESTS_MONITOR_BROWSER_H

#include "support/test.h"

#include <jansson.h>

#define BROWSER_WAIT_S 20 /* sanitizers and a busy machine included */
#define BROWSER_SITE   "http://hearth.test/"

struct browser;

struct browser_answer {
    int status;         /* 200; 0: the connection fails */
    const char *type;   /* Content-Type */
    const void *body;   /* not compressed: Chromium takes it as it is */
    size_t len;
};
/* Answers a request for BROWSER_SITE followed by `path`. */
typedef void browser_serve(void *arg, const char *path, struct browser_answer *answer);

/* NULL: this machine has no Chromium. */
struct browser *browser_new(browser_serve *serve, void *arg);
void browser_free(struct browser *b);

/* Of the pages that are opened next, and of the present one. */
void browser_view(struct browser *b, int width, int height, bool dark);
void browser_script(struct browser *b, bool on);
/* Opens a page of BROWSER_SITE and waits until it is loaded. Forgets complaints. */
void browser_open(struct browser *b, const char *path);
/* The value of an expression in the page, awaited if it is a promise. Free it with json_decref. */
json_t *browser_eval(struct browser *b, const char *expression);
/* The same for one that is a number, or true (1) or false (0). */
double browser_number(struct browser *b, const char *expression);
/* Waits until the expression is true. */
void browser_until(struct browser *b, const char *expression);
void browser_key(struct browser *b, const char *key);      /* presses "Tab", "ArrowRight", ... */
void browser_point(struct browser *b, double x, double y); /* moves the pointer there */
/* Complaints of the console, exceptions, and requests for other places since browser_open, a line
 * each; "": none. Valid until the next call. */
const char *browser_complaints(const struct browser *b);
/* Writes the page from its top as a PNG; height 0: the whole page. */
void browser_shot(struct browser *b, const char *path, int height);
/* Between the two: the longest task of the page's main thread, in milliseconds of its own time. */
void browser_trace_begin(struct browser *b);
double browser_trace_end(struct browser *b);

#endif
