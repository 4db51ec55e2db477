/* SPDX-License-Identifier: Apache-2.0 */
/* test_runfile.c: defaults and values of run files, and the error text of each kind of mistake. */
#include "cli/runfile.h"
#include "core/mem.h"
#include "core/yaml.h"
#include "kernels/quant.h"
#include "support/suite.h"

static enum hth_err parse(const char *text, struct hth_runfile **run, char *error)
{
    return hth_runfile_parse("x.yaml", (const uint8_t *)text, strlen(text), run, error);
}

TEST(values_left_out_take_defaults)
{
    (void)state;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    assert_ok(parse("run: a\n", &run, error));
    assert_string_equal(run->run, "a");
    assert_int_equal(run->compute, HTH_RUN_AUTO);
    assert_int_equal(run->model.kind, HTH_RUN_CLASSIFIER);
    assert_int_equal(run->model.grid_count, 2);
    assert_int_equal(run->model.grid[1], 4);
    assert_int_equal(run->optimizer.total, run->train.steps);
    assert_close(run->optimizer.rate, 0.001, 0, 0);
    assert_close(run->optimizer.clip, 1, 0, 0);
    assert_close(run->experts.optimizer.clip, 1, 0, 0);
    hth_runfile_free(run);
    assert_ok(parse("run: a\noptimizer: {clip: 0}\n", &run, error));
    assert_close(run->optimizer.clip, 0, 0, 0); /* 0 means no clip, not the default */
    assert_close(run->experts.optimizer.clip, 1, 0, 0);
    hth_runfile_free(run);
    assert_ok(parse("run: a\nexperts: {optimizer: {clip: 0}}\n", &run, error));
    assert_close(run->optimizer.clip, 1, 0, 0);
    assert_close(run->experts.optimizer.clip, 0, 0, 0);
    hth_runfile_free(run);
    assert_ok(parse("run: a\n", &run, error));
    assert_int_equal(run->data.shift, 0);
    hth_runfile_free(run);
    assert_ok(parse("run: a\ndata: {shift: 8}\n", &run, error));
    assert_int_equal(run->data.shift, 8);
    hth_runfile_free(run);
}

TEST(every_value_is_parsed)
{
    (void)state;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    assert_ok(parse("run: b\nseed: 7\ncompute: bf16\n"
                    "model: {kind: lm, dim: 96, layers: 3, heads: 6, context: 32, grid: [2, 3, 5],"
                    " top_k: 3, expert: transformer, balance: 0.5, noise: 0.25}\n"
                    "data: {kind: text, path: /tmp/x, shuffle_rows: 10}\n"
                    "train: {rows: 8, flights: 2, steps: 99, eval_every: 9, eval_rows: 5, k_min: 2,"
                    " grace_s: 0.1, timeout_s: 3, checkpoint_every: 11}\n"
                    "optimizer: {kind: sgd, rate: 0.5, momentum: 0.9, schedule: linear,"
                    " warmup: 3, total: 50, clip: 2, weight_decay: 0.1}\n"
                    "experts: {optimizer: {kind: lamb, rate: 0.25, trust_max: 10}, step_rows: 33,"
                    " step_age_s: 2, batch_rows_max: 77, norm_max: 8}\n",
                    &run, error));
    assert_int_equal(run->seed, 7);
    assert_int_equal(run->compute, HTH_RUN_BF16);
    assert_int_equal(run->model.grid_count, 3);
    assert_int_equal(run->model.grid[2], 5);
    assert_int_equal(run->model.expert, HTH_RUN_TRANSFORMER);
    assert_string_equal(run->data.path, "/tmp/x");
    assert_int_equal(run->train.checkpoint_every, 11);
    assert_int_equal(run->optimizer.kind, HTH_RUN_SGD);
    assert_int_equal(run->optimizer.total, 50);
    assert_int_equal(run->experts.optimizer.kind, HTH_RUN_LAMB);
    assert_close(run->experts.optimizer.trust_max, 10, 0, 0);
    assert_close(run->optimizer.trust_max, 0, 0, 0);
    assert_int_equal(run->experts.batch_rows_max, 77);
    hth_runfile_free(run);
}

TEST(averaging_defaults_and_values)
{
    (void)state;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    assert_ok(parse("run: a\ntrain: {rows: 10}\n", &run, error));
    assert_int_equal(run->averaging.mode, HTH_RUN_LOCAL);
    assert_int_equal(run->averaging.every, 10);
    assert_int_equal(run->averaging.format, HTH_QUANT_F32);
    assert_int_equal(run->averaging.target, 160);
    assert_int_equal(run->averaging.group, 16);
    assert_true(run->averaging.clip == 2);
    assert_true(run->averaging.share_max == 2);
    assert_int_equal(run->averaging.majority, HTH_RUN_EVENTUAL);
    assert_null(run->averaging.grid);
    hth_runfile_free(run);
    assert_ok(parse("run: a\naveraging: {mode: batch, every: 7, format: int8, states: true,"
                    " target: 4096, delayed: true, grid: 4x4, group: 8, clip: 2.5,"
                    " majority: strict}\n",
                    &run, error));
    assert_int_equal(run->averaging.mode, HTH_RUN_BATCH);
    assert_int_equal(run->averaging.every, 7);
    assert_int_equal(run->averaging.format, HTH_QUANT_INT8);
    assert_true(run->averaging.states && run->averaging.delayed);
    assert_int_equal(run->averaging.target, 4096);
    assert_int_equal(run->averaging.majority, HTH_RUN_STRICT);
    assert_string_equal(run->averaging.grid, "4x4");
    assert_int_equal(run->averaging.group, 8);
    assert_true(run->averaging.clip == 2.5);
    hth_runfile_free(run);
    /* An explicit 0 is not the default. */
    assert_ok(parse("run: a\naveraging: {every: 0, clip: 0}\n", &run, error));
    assert_int_equal(run->averaging.every, 0);
    assert_true(run->averaging.clip == 0);
    hth_runfile_free(run);
}

TEST(auto_wire_follows_compute)
{
    (void)state;
    static const struct {
        const char *text;
        enum hth_dtype wire;
    } cases[] = {
        {"run: a\n", HTH_BF16},
        {"run: a\ntrain: {wire: auto}\n", HTH_BF16},
        {"run: a\ncompute: bf16\n", HTH_BF16},
        {"run: a\ncompute: fp32\n", HTH_F32},
        {"run: a\ncompute: fp32\ntrain: {wire: bf16}\n", HTH_BF16},
        {"run: a\ncompute: bf16\ntrain: {wire: fp32}\n", HTH_F32},
        {"run: a\ntrain: {wire: fp16}\n", HTH_F16},
        {"run: a\ntrain: {wire: int8}\n", HTH_I8},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_runfile *run;
        char error[HTH_RUNFILE_ERROR_MAX];
        assert_ok(parse(cases[i].text, &run, error));
        assert_int_equal(hth_runfile_wire(run), cases[i].wire);
        hth_runfile_free(run);
    }
}

TEST(averaging_mistakes_are_named)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"run: a\naveraging: {mode: sometimes}\n", "sometimes"},
        {"run: a\naveraging: {evry: 1}\n", "every"},
        {"run: a\naveraging: {majority: most}\n", "most"},
        {"run: a\naveraging: {format: fp12}\n", "fp12"},
        {"run: a\ntrain: {wire: int4}\n", "int4"},
        {"run: a\naveraging: {clip: -1}\n", "averaging.clip"},
        {"run: a\naveraging: {share_max: 0.5}\n",
         "averaging.share_max is 0.5; it must be from 1 to"},
        {"run: a\naveraging: {share_max: 257}\n",
         "averaging.share_max is 257; it must be from 1 to"},
        {"run: a\naveraging: {clip: 0.5}\n", "averaging.clip is 0.5; it must be from 1 to"},
        {"run: a\naveraging: {group: 1}\n", "averaging.group"},
        {"run: a\naveraging: {group: 100000}\n", "averaging.group"},
        {"run: a\naveraging: {grid: 4y4}\n", "4y4"},
        {"run: a\naveraging: {grid: 0x4}\n", "averaging.grid"},
    };
    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct hth_runfile *run;
        char error[HTH_RUNFILE_ERROR_MAX];
        assert_err(HTH_E_CONFIG, parse(cases[i].text, &run, error));
        assert_non_null(strstr(error, cases[i].error));
    }
}

struct mistake {
    const char *text, *part;
};

static void each_must_say(const struct mistake *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct hth_runfile *run = NULL;
        char error[HTH_RUNFILE_ERROR_MAX];
        assert_err(HTH_E_CONFIG, parse(cases[i].text, &run, error));
        assert_null(run);
        if (strstr(error, cases[i].part) == NULL)
            fail_msg("%s\ngave: %s\nwithout: %s", cases[i].text, error, cases[i].part);
    }
}

/* Keys of model and data that contradict each other. */
TEST(pairs_must_fit)
{
    (void)state;
    static const struct mistake cases[] = {
        {"run: a\nmodel: {inputs: 100}\n", "'fashion-mnist' needs model.inputs 784"},
        {"run: a\nmodel: {kind: lm}\ndata: {kind: fashion-mnist}\n",
         "'lm' learns from data.kind 'text' or 'set'"},
        {"run: a\nmodel: {kind: picture}\ndata: {kind: text}\n",
         "'picture' learns from data.kind 'set'"},
        {"run: a\nmodel: {kind: picture, vocab: 256}\n", "it must be from 258 on"},
        {"run: a\nmodel: {kind: picture, height: 4}\n", "a set's pictures are squares"},
        {"run: a\ndata: {caption_drop: 0.1}\n", "data.caption_drop needs model.kind 'picture'"},
        {"run: a\nmodel: {kind: lm, vocab: 257}\ndata: {kind: set}\n",
         "256, for bytes, or from 258 on"},
        {"run: a\nadmission: {owner: abc}\n",
         "admission.owner is 'abc'; it must be a public key: 64 hex"},
        {"run: a\nadmission: {ower: abc}\n", "did you mean 'admission.owner'?"},
        {"run: a\nmodel: {words: abc}\n", "model.words is 'abc'; it must be a SHA-256: 64 hex"},
        {"run: a\nmodel: {kind: lm, vocab: 300}\ndata: {kind: text}\n",
         "words come with data.kind 'set'"},
        {"run: a\nmodel: {kind: lm}\ndata: {kind: set, shift: 1}\n", "data.shift moves pictures"},
    };
    each_must_say(cases, HTH_ARRAY_LEN(cases));
}

TEST(mistakes_are_named)
{
    (void)state;
    static const struct mistake cases[] = {
        {"run: a\nmodel:\n  dmi: 3\n", "unknown key 'dmi'"},
        {"run: a\nmodel:\n  dmi: 3\n", "did you mean 'model.dim'?"},
        {"run: a\nmodel:\n  dmi: 3\n", "unknown key 'dmi' in line 3;"},
        {"run: a\nmodel:\n  dim: 3\nzzzz: 3\n", "unknown key 'zzzz' in line 4;"},
        {"run: a\nfligths: 3\n", "did you mean 'train.flights'?"},
        {"model: {dim: 3}\n", "the key 'run' is missing"},
        {"run: a\n---\nrun: b\n", "a second document begins in line 2"},
        {"run: a\nmodel: {grid: [1, 2, 3, 4]}\n", "Excessive entries (3 max)"},
        {"run: a\nmodel: {grid: [0, 2]}\n", "model.grid is 0; it must be from 1 to 65536"},
        {"run: a\noptimizer: {trust_max: -1}\n", "trust_max is -1; it must be from 0 to 1000000"},
        {"run: a\nmodel: {top_k: 65}\n", "model.top_k is 65; it must be from 1 to 64"},
        {"run: a\nmodel: {kind: lm, dim: 100, heads: 8}\n", "even multiple of model.heads (8)"},
        {"run: a\nmodel: {kind: picture, heads: 16}\n", "model.dim / model.heads is 4"},
        {"run: a\nmodel: {kind: picture, window: 4}\n", "model.window is 4; it must be odd"},
        {"run: a\nmodel: {kind: picture, share: 3}\n", "model.share is 3; 2 layers use at most 1"},
        {"run: a\nmodel: {kind: picture, share: 3, share_last: true}\n", "use at most 2 sets"},
        {"run: a\nmodel: {kind: picture, height: 256, width: 256}\n", "is 65552 positions"},
        {"run: a\nmodel: {kind: picture, height: 65536, width: 65536}\n", "4294967312 positions"},
        {"run: a\nmodel: {kind: picture, masks: [rows]}\n", "did you mean 'row'?"},
        {"run: a\nmodel: {kind: picture, masks: [row, none]}\n", "unknown value 'none'"},
        {"run: a\nmodel: {kind: picture, last_mask: cov}\n", "did you mean 'conv'?"},
        {"run: a\nmodel: {kind: picture, objective: masked}\n", "needs model.kind 'lm'"},
        {"run: a\nmodel: {kind: picture, expert: transformer}\n", "has no masks of pictures"},
        {"run: a\nmodel: {kind: picture, layer_scale: -1}\n", "layer_scale is -1; it must be"},
        {"run: a\nmodel: {expert: none}\n", "need model.kind 'lm' or 'picture'"},
        {"run: a\nmodel: {kind: lm, masks: [row]}\ndata: {kind: text}\n", "need model.kind 'pic"},
        {"run: a\nmodel: {kind: lm, embed_dim: 8}\ndata: {kind: text}\n", "needs 'tied: true'"},
        {"run: a\nmodel: {layers: 65}\n", "model.layers is 65; it must be from 1 to 64"},
        {"run: a\ntrain: {rows: 65537}\n", "train.rows is 65537; it must be from 1 to 65536"},
        {"run: a\nmodel: {grid: [65536, 257]}\n", "experts in model.grid is 16842752"},
        {"run: a\nmodel: {expert: transformer}\n", "it needs model.kind 'lm'"},
        {"run: a\ndata: {kind: text}\n", "learns from data.kind 'fashion-mnist'"},
        {"run: a\ndata: {shift: 9}\n", "data.shift is 9; it must be from 0 to 8"},
        {"run: a\nmodel: {kind: lm}\ndata: {kind: text, shift: 1}\n", "data.shift moves pictures"},
        {"run: a\ncompute: bf61\n", "did you mean 'bf16'?"},
        {"run: a\ncompute: 0\n", "expected one of: auto, fp32, bf16"},
        {"run: a\ncompute: f16\n", "did you mean 'bf16'?"},
        {"run: a\ncompute:\n", "unknown value '' in mapping field 'compute'"},
        {"run: a\nmodel: {kind: mlp}\n", "unknown value 'mlp'"},
        {"run: a\noptimizer: {kind: newton}\n", "expected one of: adam, adamw, sgd, lamb"},
        {"run: a\nmodel:\n  colour: 3\n", "expected one of: kind, dim, layers, inputs, classes,"},
        {"run: a/b\n", "run is 'a/b'; it must be 1 to 63 bytes of UTF-8, without blanks"},
        {"run: a\nzzzz: 3\n", "expected one of: run, seed, compute, model, data, train,"},
        {"run: a\nx: 3\n", "expected one of: run,"}, /* two edits, and not a letter right */
        {"run: a\nmodel: {dim: {a: 3}}\n", "a group of keys in line 2, field dim: a whole number"},
        {"run: a\nseed: 1\nseed: 2\n", "the key 'seed' is given twice"},
        {"run: a\nmodel: {kind: clasifier}\n", "did you mean 'classifier'?"},
        {"run: a\ntrain: {k_min: 9}\n", "train.k_min is 9"},
        {"run: a\nexperts: {optimizer: {schedule: cosine}}\n", "needs 'total' steps"},
        {"", "at least 'run: NAME'"},
        {"run: [", "x.yaml: "},
        {"\t", "x.yaml: "},
        {"run: &x a\nmodel: *x\n", "x.yaml: "},
    };
    each_must_say(cases, HTH_ARRAY_LEN(cases));
}

TEST(values_of_a_wrong_kind_say_what_is_needed)
{
    (void)state;
    static const struct mistake cases[] = {
        {"run: a\nmodel: {dim: -3}\n",
         "'-3' in line 2, field dim: a whole number, 0 or larger, is needed"},
        {"run: a\nmodel: {dim: lots}\n", "'lots' in line 2, field dim: a whole number is needed"},
        {"run: a\nmodel: {dim: 20.5}\n", "'20.5' in line 2, field dim: a whole number is needed"},
        {"run: a\naveraging:\n  target: 1e4\n",
         "'1e4' in line 3, field target: a whole number is needed"},
        {"run: a\nmodel:\n  grid: [4,\n   4x]\n",
         "'4x' in line 4, field grid: a whole number is needed"},
        {"run: a\nseed: \"3\\0x\"\n", "'3' in line 2, field seed: a whole number is needed"},
        {"run: a\nmodel:\n  dim: -18446744073709551552\n",
         "'-18446744073709551552' in line 3, field dim: a whole number, 0 or larger,"},
        {"run: a\naveraging: {delayed: flase}\n",
         "'flase' in line 2, field delayed: true or false is needed"},
        {"run: a\naveraging:\n  states:\n", "'' in line 3, field states: true or false is needed"},
        {"run: a\noptimizer: {rate: 1e-3x}\n", "'1e-3x' in line 2, field rate: a number is needed"},
        {"run: a\nmodel: {dim: [3]}\n", "a list in line 2, field dim: a whole number is needed"},
        {"run: a\nmodel: 3\n", "'3' in line 2, field model: a group of 'key: value' is needed"},
        {"run: a\nmodel: {grid: 4}\n", "'4' in line 2, field grid: a list in brackets is needed"},
        {"run: [a]\n", "a list in line 1, field run: a text is needed"},
        {"run: a\nmodel: {kind: [lm]}\n", "a list in line 2, field kind: a word is needed"},
        {"run: a\nmodel: {dim: 99999999999}\n", "99999999999' is too large"},
        {"run: a\noptimizer: {rate: 1e999}\n", "rate is inf; it must be from 0 to 100"},
        {"run: a\noptimizer: {rate: .nan}\n", "'.nan' in line 2, field rate: a number is needed"},
    };
    each_must_say(cases, HTH_ARRAY_LEN(cases));
}

#define KEYS_MAX 128

/* "a.b.c" and a value, as a file: "run: x" and "a: {b: {c: VALUE}}". */
static void file_with(const char *path, const char *value, char *out, size_t size)
{
    size_t len = (size_t)snprintf(out, size, "%s", strcmp(path, "run") == 0 ? "" : "run: x\n");
    unsigned depth = 0;
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1, depth++)
        len += (size_t)snprintf(out + len, size - len, "%s%.*s: ", depth > 0 ? "{" : "",
                                (int)(dot - path), path);
    len += (size_t)snprintf(out + len, size - len, "%s%s: %s", depth > 0 ? "{" : "", path, value);
    for (; depth > 0; depth--)
        len += (size_t)snprintf(out + len, size - len, "}");
    snprintf(out + len, size - len, "\n");
}

/* The defaults that are shown are those of the parser; texts such as "train.steps" name one. */
TEST(shown_defaults_hold)
{
    (void)state;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    struct hth_run_key keys[KEYS_MAX];
    assert_ok(parse("run: x\n", &run, error));
    size_t count = hth_runfile_keys(run, keys, KEYS_MAX);
    assert_true(count > 50 && count <= KEYS_MAX);
    for (size_t i = 0; i < count; i++) {
        size_t len = strcspn(keys[i].fallback, ",");
        if (strncmp(keys[i].path, "experts.optimizer.", 18) != 0 &&
            hth_runfile_about(keys[i].path)[0] == '\0')
            fail_msg("%s: its purpose is not told", keys[i].path);
        if (keys[i].kind == HTH_RUN_SIZES)
            len = strlen(keys[i].fallback);
        if (keys[i].kind == HTH_RUN_NAME || strstr(keys[i].fallback, "train.") != NULL)
            continue;
        if (strlen(keys[i].value) != len || strncmp(keys[i].value, keys[i].fallback, len) != 0)
            fail_msg("%s: %s, default %s", keys[i].path, keys[i].value, keys[i].fallback);
    }
    hth_runfile_free(run);
}

/* Every bound that is shown holds: the number itself is good, the next one is not. */
TEST(shown_ranges_hold)
{
    /* keys that have an effect only with another one */
    static const char *const needed[][2] = {{"model.inputs", "data: {kind: set}\n"},
                                            {"data.caption_drop", "model: {kind: picture}\n"}};
    (void)state;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX], text[200], value[64];
    struct hth_run_key keys[KEYS_MAX];
    size_t crossed = 0;
    assert_ok(parse("run: x\n", &run, error));
    size_t count = hth_runfile_keys(run, keys, KEYS_MAX);
    hth_runfile_free(run);
    for (size_t i = 0; i < count; i++) {
        double low, high;
        if (keys[i].kind != HTH_RUN_NUMBER || sscanf(keys[i].range, "%lf to %lf", &low, &high) != 2)
            continue;
        snprintf(value, sizeof(value), "%.10g",
                 high + (high < 1 ? 1 : 1 + high / 1e6 * (high > 1e9)));
        file_with(keys[i].path, value, text, sizeof(text));
        assert_err(HTH_E_CONFIG, parse(text, &run, error));
        if (strstr(error, high == UINT32_MAX ? "too large" : keys[i].path) == NULL)
            fail_msg("%s gave %s", text, error);
        crossed++;
        if (high == UINT32_MAX || strcmp(keys[i].path, "model.dim") == 0)
            continue;
        snprintf(value, sizeof(value), "%.10g", high);
        file_with(keys[i].path, value, text, sizeof(text));
        for (size_t k = 0; k < HTH_ARRAY_LEN(needed); k++)
            if (strcmp(keys[i].path, needed[k][0]) == 0)
                snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s", needed[k][1]);
        if (parse(text, &run, error) != HTH_OK)
            fail_msg("%s gave %s", text, error);
        hth_runfile_free(run);
    }
    assert_true(crossed > 30);
}

/* The canonical form has what the values say, however the file says it. */
TEST(canonical_form_ignores_spelling)
{
    (void)state;
    static const char *const same[] = {
        "run: a\nmodel: {kind: lm, dim: 32}\noptimizer: {rate: 0.5}\n",
        "# a comment\noptimizer:\n  rate: 5e-1\nmodel:\n  dim: 32\n  kind: lm\n  heads: 4\nrun: "
        "'a'\n",
        "run: a\nmodel: {kind: lm, dim: 32}\noptimizer: {rate: 0.5}\ndata: {path: /x}\n"
        "admission: {owner: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}\n",
    };
    char error[HTH_RUNFILE_ERROR_MAX];
    struct hth_runfile *run;
    for (size_t i = 0; i < HTH_ARRAY_LEN(same); i++) {
        assert_ok(parse(same[i], &run, error));
        run->train.steps = 7; /* an option of this machine */
        char *text = hth_runfile_canonical(run);
        assert_string_equal(text,
                            "model.kind = lm\nrun = a\nmodel.dim = 32\noptimizer.rate = 0.5\n");
        hth_free(text);
        hth_runfile_free(run);
    }
    /* A private run is another one than a closed run of the same values. */
    assert_ok(parse("run: a\nadmission: {private: true, owner: "
                    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}\n",
                    &run, error));
    char *hidden = hth_runfile_canonical(run);
    assert_string_equal(hidden, "model.kind = classifier\nrun = a\nadmission.private = true\n");
    hth_free(hidden);
    hth_runfile_free(run);
    assert_err(HTH_E_CONFIG, parse("run: a\nadmission: {private: true}\n", &run, error));
    assert_non_null(strstr(error, "admission.private needs admission.owner"));
    static const char *const kinds[] = {"classifier", "lm", "picture"};
    for (size_t i = 0; i < HTH_ARRAY_LEN(kinds); i++) {
        char file[64], want[64];
        snprintf(file, sizeof(file), "run: a\nmodel: {kind: %s}\n", kinds[i]);
        snprintf(want, sizeof(want), "model.kind = %s\nrun = a\n", kinds[i]);
        assert_ok(parse(file, &run, error));
        char *text = hth_runfile_canonical(run);
        assert_string_equal(text, want);
        hth_free(text);
        hth_runfile_free(run);
    }
}

TEST(huge_file_is_refused)
{
    (void)state;
    struct hth_runfile *run;
    char error[HTH_RUNFILE_ERROR_MAX];
    char *text = hth_calloc(HTH_RUNFILE_BYTES_MAX + 2, 1);
    memset(text, '#', HTH_RUNFILE_BYTES_MAX + 1);
    assert_err(HTH_E_TOO_LARGE, parse(text, &run, error));
    assert_non_null(strstr(error, "at most 65536"));
    memcpy(text, "run: a\n", 7);
    text[HTH_RUNFILE_BYTES_MAX] = '\0';
    assert_ok(parse(text, &run, error));
    hth_runfile_free(run);
    hth_free(text);
}
