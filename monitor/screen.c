/* SPDX-License-Identifier: Apache-2.0 */
/* screen.c: a frame is a grid of cells, in which each part draws its rectangle. */
#include "monitor/screen.h"

#include "cli/cli.h"
#include "core/mem.h"
#include "monitor/facts.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum style { PLAIN, STRONG, SOFT, BAD, GOOD, WARN, TRAIN, TEST, STYLES };

struct cell {
    uint32_t c; /* 0: a space */
    uint8_t style;
};

struct frame {
    struct cell *cell;
    int columns, rows;
    int top, bottom; /* rows below `top` and above `bottom` are drawn */
    bool utf8;
};

struct box {
    int x, y, columns, rows;
};

/* ---- cells --------------------------------------------------------------------------------- */

static void put(struct frame *f, int x, int y, uint32_t c, enum style style)
{
    if (x >= 0 && y >= f->top && x < f->columns && y < f->bottom)
        f->cell[y * f->columns + x] = (struct cell){c, (uint8_t)style};
}

/* Writes at most `room` cells of a text; returns how many. */
static int write_text(struct frame *f, int x, int y, int room, enum style style, const char *text)
{
    int n = 0;
    for (; text[n] != '\0' && n < room; n++)
        put(f, x + n, y, text[n] >= ' ' && text[n] <= '~' ? (uint32_t)text[n] : '?', style);
    return n;
}

/* A rule with a title: "-- peers -------". */
static void rule(struct frame *f, struct box b, enum style style, const char *title)
{
    for (int x = 0; x < b.columns - 1; x++)
        put(f, b.x + x, b.y, f->utf8 ? 0x2500 : '-', SOFT);
    put(f, b.x + 1, b.y, ' ', SOFT);
    int n = write_text(f, b.x + 2, b.y, b.columns - 4, style, title);
    put(f, b.x + 2 + n, b.y, ' ', SOFT);
}

static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = c == 0 ? ' ' : (char)c;
        return 1;
    }
    out[0] = (char)(0xe0 | c >> 12); /* all that is drawn is below U+10000 and above U+0800 */
    out[1] = (char)(0x80 | (c >> 6 & 0x3f));
    out[2] = (char)(0x80 | (c & 0x3f));
    return 3;
}

static char *frame_text(const struct frame *f, bool color)
{
    static const char *const codes[STYLES] = {"0",    "0;1",  "0;2",  "0;1;31",
                                              "0;32", "0;33", "0;33", "0;36"};
    size_t most = (size_t)f->rows * ((size_t)f->columns * 12 + 8) + 1, len = 0;
    char *out = hth_calloc(most, 1);
    for (int y = 0; y < f->rows; y++) {
        const struct cell *row = f->cell + y * f->columns;
        int last = f->columns;
        uint8_t style = PLAIN;
        while (last > 0 && row[last - 1].c == 0)
            last--;
        for (int x = 0; x < last; x++) {
            if (color && row[x].style != style)
                len += (size_t)snprintf(out + len, most - len, "\x1b[%sm", codes[row[x].style]);
            style = row[x].style;
            len += encode(row[x].c, out + len);
        }
        if (color && style != PLAIN)
            len += (size_t)snprintf(out + len, most - len, "\x1b[0m");
        if (y + 1 < f->rows)
            out[len++] = '\n';
    }
    return out;
}

/* ---- head ---------------------------------------------------------------------------------- */

static void fact_at(struct frame *f, int *x, int y, const struct hth_fact *fact, bool named)
{
    if (named)
        *x += write_text(f, *x, y, f->columns - *x, SOFT, fact->name) + 1;
    *x += write_text(f, *x, y, f->columns - *x, fact->alarm ? BAD : PLAIN, fact->text) + 3;
}

/* Draws four lines. */
static void head(struct frame *f, const json_t *run)
{
    struct hth_fact fact[HTH_FACTS];
    char at[HTH_FACT_TEXT], right[2 * HTH_FACT_TEXT];
    const char *name = hth_fact_text(run, "run"), *trouble = hth_fact_text(run, "trouble");
    int x;
    hth_facts(run, fact);
    hth_fact_time(hth_fact_or(run, "now_at_s", 0), at);
    int len = snprintf(right, sizeof(right), "%s, %s", fact[0].text, at);
    int left = write_text(f, 1, 0, f->columns / 2, STRONG, name[0] != '\0' ? name : "a run");
    x = HTH_MAX(f->columns - 1 - len, left + 3);
    write_text(f, x, 0, f->columns - x, strncmp(fact[0].text, "training", 8) == 0 ? GOOD : WARN,
               right);
    x = 1;
    fact_at(f, &x, 1, &fact[1], true);
    if (trouble[0] != '\0')
        write_text(f, x, 1, f->columns - x, BAD, trouble);
    x = 1;
    fact_at(f, &x, 2, &fact[2], true);
    fact_at(f, &x, 2, &fact[3], true);
    x = 1;
    fact_at(f, &x, 3, &fact[5], false);
    fact_at(f, &x, 3, &fact[6], false);
}

/* ---- the loss ------------------------------------------------------------------------------ */

struct point {
    double x, y;
    double t;
};

struct curve {
    struct point *point;
    size_t count;
};

/* The points of two columns that both have a number; `t` as well, for gaps. */
static struct curve curve_of(const json_t *table, const char *x, const char *y)
{
    const json_t *xs = json_object_get(table, x), *ys = json_object_get(table, y);
    const json_t *ts = json_object_get(table, "t");
    size_t n = HTH_MIN(json_array_size(xs), json_array_size(ys));
    struct curve curve = {hth_new_array(struct point, n + 1), 0};
    for (size_t i = 0; i < n; i++) {
        const json_t *a = json_array_get(xs, i), *b = json_array_get(ys, i);
        struct point p = {json_number_value(a), json_number_value(b),
                          json_number_value(json_array_get(ts, i))};
        if (json_is_number(a) && json_is_number(b) && fabs(p.x) < 1e15 && fabs(p.y) < 1e15)
            curve.point[curve.count++] = p;
    }
    return curve;
}

/* Samples at the tests' steps, which have none: those of the run at the same time. */
static void give_samples(struct curve *tests, const json_t *history)
{
    struct curve run = curve_of(history, "t", "samples");
    for (size_t i = 0; i < tests->count; i++) {
        struct point *p = &tests->point[i];
        p->x = NAN;
        for (size_t j = 0; j < run.count && run.point[j].x <= p->t; j++)
            p->x = run.point[j].y;
    }
    hth_free(run.point);
}

struct range {
    double low, high;
};

static void widen(struct range *r, double v)
{
    r->low = fmin(r->low, v);
    r->high = fmax(r->high, v);
}

/* Where v lies in the range: 0 to n - 1; -1: it is no number. */
static int place(double v, struct range r, int n)
{
    double of = r.high > r.low ? (v - r.low) / (r.high - r.low) : 0.5;
    return isfinite(of) ? (int)(fmin(fmax(of, 0), 1) * (n - 1) + 0.5) : -1;
}

/* Sets a dot of a braille character; in ASCII a dot is a character. */
static void dot(struct frame *f, struct box b, int x, int y, enum style style)
{
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    if (!f->utf8) {
        put(f, b.x + x, b.y + b.rows - 1 - y, '*', style);
        return;
    }
    y = 4 * b.rows - 1 - y;
    int column = b.x + x / 2, row = b.y + y / 4;
    if (column >= f->columns || row < f->top || row >= f->bottom)
        return;
    uint32_t was = f->cell[row * f->columns + column].c;
    put(f, column, row, (was >= 0x2800 && was < 0x2900 ? was : 0x2800) | bits[y % 4][x % 2], style);
}

/* Joins each point to the one before, but over a pause of the monitor. */
static void draw_curve(struct frame *f, struct box b, const struct curve *curve, struct range xs,
                       struct range ys)
{
    int wide = f->utf8 ? 2 * b.columns : b.columns, high = f->utf8 ? 4 * b.rows : b.rows;
    int last_x = -1, last_y = 0;
    double gap = INFINITY;
    for (size_t i = 0; i < curve->count; i++) {
        const struct point *p = &curve->point[i];
        int x = place(p->x, xs, wide), y = place(p->y, ys, high);
        double apart = i > 0 ? p->t - p[-1].t : 0;
        bool joined = i > 0 && apart <= 3 * gap && x >= last_x;
        gap = i > 0 ? apart : INFINITY;
        for (int k = joined ? last_x : x; k <= x; k++) {
            int to = y;
            if (joined && x > last_x)
                to = last_y + (int)lround((double)(y - last_y) * (k - last_x) / (x - last_x));
            dot(f, b, k, to, TRAIN);
        }
        last_x = x;
        last_y = y;
    }
}

static const char *number_text(double v, bool loss, char out[32])
{
    if (loss)
        snprintf(out, 32, "%.3g", v);
    else if (v >= 0 && v < 1e7)
        hth_cli_count_text((uint64_t)v, out);
    else
        snprintf(out, 32, "%.3gM", v / 1e6);
    return out;
}

static void x_label(struct frame *f, int x, int y, double v, bool time, bool right)
{
    char text[HTH_FACT_TEXT];
    number_text(v, false, text);
    if (time) {
        char at[HTH_FACT_TEXT];
        hth_fact_time(v, at);
        snprintf(text, sizeof(text), "%.11s", strlen(at) > 5 ? at + 5 : at); /* without the year */
    }
    write_text(f, right ? x - (int)strlen(text) : x, y, 24, SOFT, text);
}

static const char *const axes[] = {"steps", "samples", "time"};
static const char *const axis_columns[] = {"step", "samples", "t"};

static void plot(struct frame *f, struct box b, const json_t *run, unsigned against)
{
    const json_t *history = json_object_get(run, "history"), *all = json_object_get(run, "tests");
    struct curve train = curve_of(history, axis_columns[against], "loss");
    struct curve tests = curve_of(all, against == 1 ? "step" : axis_columns[against], "loss");
    struct range xs = {INFINITY, -INFINITY}, ys = xs;
    char text[32], title[64];
    if (against == 1)
        give_samples(&tests, history);
    for (size_t i = 0; i < train.count + tests.count; i++) {
        const struct point *p = i < train.count ? &train.point[i] : &tests.point[i - train.count];
        if (isfinite(p->x))
            widen(&xs, p->x);
        widen(&ys, p->y);
    }
    snprintf(title, sizeof(title), "loss against %s", axes[against]);
    rule(f, b, STRONG, title);
    if (tests.count > 0) {
        put(f, b.x + 5 + (int)strlen(title), b.y, 'o', TEST);
        write_text(f, b.x + 7 + (int)strlen(title), b.y, 5, SOFT, "test ");
    }
    struct box inner = {b.x + 8, b.y + 1, b.columns - 9, b.rows - 2};
    if (train.count + tests.count == 0) {
        write_text(f, b.x + 1, b.y + 1, b.columns - 2, SOFT, "no loss is known yet");
    } else {
        draw_curve(f, inner, &train, xs, ys);
        for (size_t i = 0; i < tests.count; i++) {
            int x = place(tests.point[i].x, xs, inner.columns);
            int y = place(tests.point[i].y, ys, inner.rows);
            if (x >= 0)
                put(f, inner.x + x, inner.y + inner.rows - 1 - y, 'o', TEST);
        }
        write_text(f, b.x, inner.y, 7, SOFT, number_text(ys.high, true, text));
        write_text(f, b.x, inner.y + inner.rows - 1, 7, SOFT, number_text(ys.low, true, text));
        x_label(f, inner.x, b.y + b.rows - 1, xs.low, against == 2, false);
        x_label(f, inner.x + inner.columns, b.y + b.rows - 1, xs.high, against == 2, true);
    }
    hth_free(train.point);
    hth_free(tests.point);
}

/* ---- experts ------------------------------------------------------------------------------- */

struct layer {
    const json_t *json, *replicas;
    char title[HTH_FACT_TEXT];
    int count, columns, rows; /* experts, and how they are laid out */
};

static struct layer layer_of(const json_t *run, size_t l, int room)
{
    struct layer layer = {.json = json_array_get(json_object_get(run, "layers"), l)};
    const json_t *grid = json_object_get(layer.json, "grid");
    size_t dims = json_array_size(grid);
    json_int_t last = dims > 1 ? json_integer_value(json_array_get(grid, dims - 1)) : 0;
    layer.replicas = json_object_get(layer.json, "replicas");
    layer.count = (int)HTH_MIN(json_array_size(layer.replicas), (size_t)1 << 20);
    layer.columns = last > 0 && last <= room ? (int)last : HTH_MAX(HTH_MIN(layer.count, room), 1);
    layer.rows = (layer.count + layer.columns - 1) / layer.columns;
    snprintf(layer.title, sizeof(layer.title), "%.24s %.0f/%.0f", hth_fact_text(layer.json, "name"),
             hth_fact_or(layer.json, "served", 0), hth_fact_or(layer.json, "places", 0));
    return layer;
}

/* The number of hosts as a digit; X: none, which is told apart without colours, too. */
static void put_hosts(struct frame *f, int x, int y, json_int_t hosts)
{
    uint32_t c = hosts <= 0 ? 'X' : hosts < 10 ? (uint32_t)('0' + hosts) : '+';
    put(f, x, y, c, hosts <= 0 ? BAD : hosts == 1 ? WARN : GOOD);
}

/* The least number of hosts of the experts from `from` to before `to`. */
static json_int_t least(const struct layer *layer, int from, int to)
{
    json_int_t low = INT64_MAX;
    for (int i = from; i < to; i++)
        low = HTH_MIN(low, json_integer_value(json_array_get(layer->replicas, (size_t)i)));
    return low;
}

/* Lays the layers out side by side from b.y on, row by row; returns the rows that takes. */
static int shelves(struct frame *f, struct box b, const json_t *run, bool draw)
{
    size_t count = json_array_size(json_object_get(run, "layers"));
    int x = 0, y = 0, high = 0;
    for (size_t l = 0; l < count && l < HTH_SCREEN_MAX; l++) {
        struct layer layer = layer_of(run, l, b.columns - 2);
        int wide = HTH_MAX(layer.columns, (int)strlen(layer.title));
        if (x > 0 && x + wide > b.columns - 1) {
            y += high + 1;
            x = high = 0;
        }
        if (draw) {
            write_text(f, b.x + 1 + x, b.y + y, b.columns - 2, SOFT, layer.title);
            for (int i = 0; i < layer.count; i++)
                put_hosts(f, b.x + 1 + x + i % layer.columns, b.y + y + 1 + i / layer.columns,
                          json_integer_value(json_array_get(layer.replicas, (size_t)i)));
        }
        x += wide + 2;
        high = HTH_MAX(high, layer.rows + 1);
    }
    return y + high;
}

/* A line for each layer: in each character the least number of hosts of some experts. */
static void digest(struct frame *f, struct box b, const json_t *run)
{
    size_t count = json_array_size(json_object_get(run, "layers"));
    for (size_t l = 0; l < count; l++) {
        struct layer layer = layer_of(run, l, b.columns);
        int y = b.y + (int)l, room = HTH_MIN(layer.count, b.columns - 20);
        if ((int)l + 1 == b.rows && l + 1 < count) {
            char more[HTH_FACT_TEXT];
            snprintf(more, sizeof(more), "and %zu more layers (e)", count - l);
            write_text(f, b.x + 1, y, b.columns - 2, SOFT, more);
            return;
        }
        write_text(f, b.x + 1, y, 18, SOFT, layer.title);
        for (int i = 0; i < room; i++) {
            int from = (int)((int64_t)layer.count * i / room);
            put_hosts(f, b.x + 20 + i - 1, y,
                      least(&layer, from, (int)((int64_t)layer.count * (i + 1) / room)));
        }
    }
}

static void experts_rule(struct frame *f, struct box b, const json_t *run)
{
    double places = hth_fact_or(run, "places", 0), served = hth_fact_or(run, "served", 0);
    char title[HTH_FACT_TEXT];
    if (served < places)
        snprintf(title, sizeof(title), "experts: %.0f of %.0f missing", places - served, places);
    else
        snprintf(title, sizeof(title), "experts: %.0f, all served", places);
    rule(f, b, served < places ? BAD : STRONG, title);
}

static void experts(struct frame *f, struct box b, const json_t *run)
{
    struct box inner = {b.x, b.y + 1, b.columns, b.rows - 1};
    experts_rule(f, b, run);
    if (shelves(f, inner, run, false) <= inner.rows)
        (void)shelves(f, inner, run, true);
    else
        digest(f, inner, run);
}

/* ---- lists --------------------------------------------------------------------------------- */

static const int cell_columns[HTH_PEER_CELLS] = {11, 26, 17, 10, 8, 15, 31};

static void peer_row(struct frame *f, struct box b, int y, char cell[HTH_PEER_CELLS][HTH_FACT_TEXT],
                     enum style style)
{
    int x = b.x + 1;
    for (size_t i = 0; i < HTH_PEER_CELLS && x < b.x + b.columns; i++) {
        int room = HTH_MIN(cell_columns[i] - 1, b.x + b.columns - x);
        int len = (int)strlen(cell[i]);
        if (room <
            HTH_MIN(cell_columns[i] - 1, 14)) /* the column does not fit, nor do later ones */
            return;
        bool right = i >= 2 && i <= 4; /* numbers */
        write_text(f, right ? x + HTH_MAX(room - len, 0) : x, y, room,
                   i == 1 && strchr(cell[i], ':') != NULL && style == PLAIN ? WARN : style,
                   cell[i]);
        x += cell_columns[i] + (right ? 1 : 0);
    }
}

/* Draws the peers from `first` on. */
static void peers(struct frame *f, struct box b, const json_t *run, int first)
{
    const json_t *all = json_object_get(run, "peers");
    char cell[HTH_PEER_CELLS][HTH_FACT_TEXT], title[HTH_FACT_TEXT];
    int count = (int)json_array_size(all), shown = HTH_MIN(count - first, b.rows - 2);
    snprintf(title, sizeof(title), shown < count ? "peers: %d of %d (p, arrows)" : "peers: %d",
             shown, count);
    rule(f, b, STRONG, title);
    for (size_t i = 0; i < HTH_PEER_CELLS; i++)
        snprintf(cell[i], HTH_FACT_TEXT, "%s", hth_peer_heads[i]);
    peer_row(f, b, b.y + 1, cell, SOFT);
    for (int i = first; i < first + shown; i++) {
        hth_peer_cells(json_array_get(all, (size_t)i), cell);
        peer_row(f, b, b.y + 2 + i - first, cell, PLAIN);
    }
}

/* Draws the events from the `first` newest on. */
static void events(struct frame *f, struct box b, const json_t *run, int first)
{
    const json_t *all = json_object_get(run, "events");
    char at[HTH_FACT_TEXT];
    int count = (int)json_array_size(all);
    rule(f, b, STRONG, "events, UTC");
    for (int i = first; i < count && i - first < b.rows - 1; i++) {
        const json_t *event = json_array_get(all, (size_t)(count - 1 - i));
        const char *kind = hth_fact_text(event, "kind");
        bool bad = strcmp(kind, "killed") == 0 || strcmp(kind, "behind") == 0 ||
                   strcmp(kind, "fork") == 0;
        int y = b.y + 1 + i - first;
        hth_fact_time(hth_fact_or(event, "t", 0), at);
        write_text(f, b.x + 1, y, 11, SOFT, strlen(at) > 5 ? at + 5 : at);
        write_text(f, b.x + 14, y, b.columns - 15, bad ? BAD : PLAIN, hth_fact_text(event, "text"));
    }
    if (count == 0)
        write_text(f, b.x + 1, b.y + 1, b.columns - 2, SOFT, "nothing has happened yet");
}

/* ---- views and keys ------------------------------------------------------------------------ */

static const struct {
    char key;
    const char *name, *what;
} keys[] = {
    {'a', "a", "all of it (Esc, too)"},
    {'l', "l", "the loss alone"},
    {'e', "e", "the experts alone"},
    {'p', "p", "the peers alone"},
    {'v', "v", "the events alone"},
    {'x', "x", "loss against steps, samples or time"},
    {'\0', "arrows, j k, space b", "scroll"},
    {'?', "?", "these keys"},
    {'q', "q, Ctrl-C", "end; the run goes on"},
};

static void key_list(struct frame *f, struct box b)
{
    rule(f, b, STRONG, "keys");
    for (size_t i = 0; i < HTH_ARRAY_LEN(keys); i++) {
        write_text(f, b.x + 2, b.y + 1 + (int)i, 21, STRONG, keys[i].name);
        write_text(f, b.x + 24, b.y + 1 + (int)i, b.columns - 24, PLAIN, keys[i].what);
    }
}

static void all_parts(struct frame *f, struct box b, const json_t *run, unsigned against)
{
    int listed = HTH_MAX(2, (int)json_array_size(json_object_get(run, "peers")) + 2);
    int curve = HTH_MAX(5, b.rows * 9 / 20), people = HTH_MIN(listed, (b.rows - curve) * 3 / 5);
    int left = b.columns * 11 / 20;
    plot(f, (struct box){b.x, b.y, left, curve}, run, against);
    experts(f, (struct box){b.x + left, b.y, b.columns - left, curve}, run);
    peers(f, (struct box){b.x, b.y + curve, b.columns, people}, run, 0);
    events(f, (struct box){b.x, b.y + curve + people, b.columns, b.rows - curve - people}, run, 0);
}

/* Lines that a view has beyond those that fit. */
static unsigned beyond(int lines, int room)
{
    return lines > room ? (unsigned)(lines - room) : 0;
}

static void one_part(struct frame *f, struct box b, const json_t *run, struct hth_screen *s)
{
    struct box inner = {b.x, b.y + 1, b.columns, b.rows - 1};
    unsigned most = 0;
    if (s->view == HTH_SCREEN_EXPERTS)
        most = beyond(shelves(f, inner, run, false), inner.rows);
    else if (s->view == HTH_SCREEN_PEERS)
        most = beyond((int)json_array_size(json_object_get(run, "peers")), b.rows - 2);
    else if (s->view == HTH_SCREEN_EVENTS)
        most = beyond((int)json_array_size(json_object_get(run, "events")), inner.rows);
    s->scroll = HTH_MIN(s->scroll, most);
    if (s->view == HTH_SCREEN_LOSS) {
        plot(f, b, run, s->against % HTH_ARRAY_LEN(axes));
    } else if (s->view == HTH_SCREEN_PEERS) {
        peers(f, b, run, (int)s->scroll);
    } else if (s->view == HTH_SCREEN_EVENTS) {
        events(f, b, run, (int)s->scroll);
    } else if (s->view == HTH_SCREEN_KEYS) {
        key_list(f, b);
    } else {
        experts_rule(f, b, run);
        f->top = inner.y;
        inner.y -= (int)s->scroll;
        (void)shelves(f, inner, run, true);
        f->top = 0;
    }
}

static void refuse(struct frame *f)
{
    char text[HTH_FACT_TEXT];
    int len = snprintf(text, sizeof(text), "%d columns, %d rows: %d and %d are needed", f->columns,
                       f->rows, HTH_SCREEN_COLUMNS_MIN, HTH_SCREEN_ROWS_MIN);
    for (int at = 0, y = 0; at < len; at += f->columns, y++)
        write_text(f, 0, y, f->columns, WARN, text + at);
}

char *hth_screen_frame(const json_t *run, struct hth_screen *s)
{
    struct frame f = {.columns = (int)HTH_MIN(HTH_MAX(s->columns, 1u), (unsigned)HTH_SCREEN_MAX),
                      .rows = (int)HTH_MIN(HTH_MAX(s->rows, 1u), (unsigned)HTH_SCREEN_MAX),
                      .utf8 = s->utf8};
    f.cell = hth_calloc((size_t)f.columns * (size_t)f.rows, sizeof(*f.cell));
    f.bottom = f.rows;
    if (s->columns < HTH_SCREEN_COLUMNS_MIN || s->rows < HTH_SCREEN_ROWS_MIN) {
        refuse(&f);
    } else {
        struct box body = {0, 4, f.columns, f.rows - 5};
        head(&f, run);
        write_text(&f, 1, f.rows - 1, f.columns - 1, SOFT, "? keys   q end");
        f.bottom--;
        if (s->view == HTH_SCREEN_ALL)
            all_parts(&f, body, run, s->against % HTH_ARRAY_LEN(axes));
        else
            one_part(&f, body, run, s);
    }
    char *out = frame_text(&f, s->color);
    hth_free(f.cell);
    return out;
}

static void scroll_by(struct hth_screen *s, int lines)
{
    s->scroll = lines < 0 && s->scroll < (unsigned)-lines ? 0 : s->scroll + (unsigned)lines;
}

bool hth_screen_key(struct hth_screen *s, char key, bool escape)
{
    static const char views[] = "alepv?"; /* in the order of enum hth_screen_view */
    int page = HTH_MAX((int)s->rows - 8, 1);
    const char *view = key != '\0' && !escape ? strchr(views, key) : NULL;
    if (key == 'q' && !escape)
        return false;
    if (view != NULL || key == '\x1b') {
        s->view = view != NULL ? (enum hth_screen_view)(view - views) : HTH_SCREEN_ALL;
        s->scroll = 0;
    } else if (key == 'x' && !escape) {
        s->against = (s->against + 1) % 3;
    } else if (key == (escape ? 'A' : 'k')) {
        scroll_by(s, -1);
    } else if (key == (escape ? 'B' : 'j')) {
        scroll_by(s, 1);
    } else if (key == (escape ? '5' : 'b')) { /* ESC [ 5 ~: page up */
        scroll_by(s, -page);
    } else if (key == (escape ? '6' : ' ')) {
        scroll_by(s, page);
    }
    return true;
}

char *hth_screen_line(const json_t *run)
{
    struct hth_fact fact[HTH_FACTS];
    char at[HTH_FACT_TEXT];
    hth_facts(run, fact);
    hth_fact_time(hth_fact_or(run, "now_at_s", 0), at);
    char *out = hth_asprintf("%s: %s; step %s; loss %s; test %s; %s; %s; experts %s", at,
                             fact[0].text, fact[1].text, fact[2].text, fact[3].text, fact[5].text,
                             fact[6].text, fact[7].text);
    for (char *c = out; *c != '\0'; c++)
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    return out;
}
