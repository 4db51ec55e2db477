/* SPDX-License-Identifier: Apache-2.0 */
/* eval.c: hearth eval: the loss of a trained model on a data set, and its kind's own figures. */
#include <math.h>

#include "app/use.h"
#include "cli/bar.h"
#include "cli/json.h"

#define ROWS 4096

struct evaluating {
    struct hth_use use;
    uint64_t samples;
    struct hth_bar bar;
};

enum { KEY_SAMPLES = 0x5200 };

static const struct argp_option options[] = {
    {"samples", KEY_SAMPLES, "N", 0, "The first N only (default: all)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct evaluating *e = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->child_inputs[1] = &e->use.flags;
        break;
    case KEY_SAMPLES:
        e->samples = hth_cli_number(state, "--samples", arg, 1, UINT64_MAX);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp_child children[] = {
    {&hth_use_argp, 0, NULL, 0}, {&hth_use_samples_argp, 0, NULL, 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .children = children,
    .args_doc = "[DATA]",
    .doc = "Compute the loss of a trained model on the held-out part of a data set (default: the "
           "run file's), and what else its kind is measured by.",
};

static double bits(struct hth_infer_loss loss)
{
    return loss.sum / (double)HTH_MAX(loss.counted, UINT64_C(1)) / log(2);
}

static double right(struct hth_infer_loss loss)
{
    return (double)loss.correct / (double)HTH_MAX(loss.counted, UINT64_C(1));
}

static void print_json(const struct evaluating *e, const struct hth_survey_result *r)
{
    json_t *o = json_object();
    hth_json_count(o, "samples", r->samples);
    hth_json_real(o, "loss", r->loss);
    if (e->use.model.model.kind == HTH_MODEL_PICTURE) {
        hth_json_real(o, "bits_text", bits(r->of[0]));
        hth_json_real(o, "bits_code", bits(r->of[1]));
    } else {
        hth_json_real(o, "accuracy", right(r->of[0]));
        if (e->use.model.model.kind == HTH_MODEL_LM)
            hth_json_real(o, "bits", bits(r->of[0]));
    }
    hth_use_print_json_take(o);
}

static void print(const struct evaluating *e, const struct hth_survey_result *r)
{
    unsigned long long n = r->samples;
    if (e->use.model.model.kind == HTH_MODEL_PICTURE)
        hth_say("%llu samples: loss %.4f, %.3f bits per code, %.3f per word of the text", n,
                r->loss, bits(r->of[1]), bits(r->of[0]));
    else if (e->use.model.model.kind == HTH_MODEL_LM)
        hth_say("%llu samples: loss %.4f, %.3f bits per %s, %.2f %% right", n, r->loss,
                bits(r->of[0]), e->use.model.words != NULL ? "word or byte" : "byte",
                100 * right(r->of[0]));
    else
        hth_say("%llu samples: loss %.4f, %.2f %% right", n, r->loss, 100 * right(r->of[0]));
}

static void on_batch(void *arg, uint64_t first, uint32_t count, const int32_t *labels)
{
    struct evaluating *e = arg;
    (void)labels;
    hth_bar_at(&e->bar, first + count, hth_survey_samples(e->use.survey));
}

static void on_done(void *arg, enum hth_err err)
{
    struct evaluating *e = arg;
    struct hth_survey_result r;
    hth_bar_end(&e->bar);
    if (err != HTH_OK) {
        hth_use_fail(&e->use, err, hth_survey_why(e->use.survey));
        return;
    }
    hth_survey_result(e->use.survey, &r);
    if (e->use.flags.json)
        print_json(e, &r);
    else
        print(e, &r);
    hth_use_stop(&e->use, HTH_EXIT_OK);
}

static void start(void *arg)
{
    struct evaluating *e = arg;
    struct hth_survey_opts o = {
        .samples = e->samples, .on_batch = on_batch, .on_done = on_done, .arg = e};
    hth_bar_begin(&e->bar, "evaluating");
    hth_use_survey(&e->use, &o);
}

static uint32_t rows(const void *arg)
{
    (void)arg;
    return ROWS;
}

int hth_verb_eval(int argc, char **argv)
{
    static const struct hth_use_verb verb = {"eval", NULL, rows, start, NULL};
    struct evaluating e = {.samples = 0};
    if (argp_parse(&argp, argc, argv, 0, NULL, &e) != 0)
        return HTH_EXIT_USAGE;
    return hth_use_main(&e.use, &verb, &e);
}
