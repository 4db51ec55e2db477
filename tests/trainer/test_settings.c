/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that trainers of a run must share: each setting that decides a step changes the schema,
 * in the modes in which it does, and is named; a trainer's own options do not change it. Trainers
 * that differ never average, and the second of them does not begin a run.
 */
#include "trainer/settings.h"
#include "support/suite.h"
#include "trainer/crew.h"

#define MODEL   "model or seed"
#define MODE    "averaging.mode or states"
#define OPTIM   "optimizer"
#define BATCH   "averaging.target, delayed, majority, format or clip"
#define MEETING "averaging.grid, group or share_max"

/* ---- hashes ---------------------------------------------------------------------------------- */

static struct hth_settings settings_of(const struct hth_trainer_opts *o)
{
    struct hth_model *model;
    struct hth_settings settings;

    assert_ok(hth_model_new(NULL, &o->model, &model));
    hth_settings_of(model, &o->optim, &o->share, &settings);
    hth_model_free(model);
    return settings;
}

static struct hth_trainer_opts usual(enum hth_share_mode mode)
{
    struct hth_trainer_opts o = task_classifier();

    o.share.mode = mode;
    o.optim.schedule.kind = HTH_SCHEDULE_COSINE;
    o.optim.schedule.total_steps = 1000;
    return o;
}

/* Changes of one option; where it decides a step: in local mode, in batch mode. */
#define CHANGE_MAP(X)                                                                              \
    X(RATE, optim.schedule.lr *= 1.01f, OPTIMIZER, false, true)                                    \
    X(TOTAL, optim.schedule.total_steps++, OPTIMIZER, false, true)                                 \
    X(WARMUP, optim.schedule.warmup_steps++, OPTIMIZER, false, true)                               \
    X(DECAY, optim.optim.weight_decay += 0.01f, OPTIMIZER, false, true)                            \
    X(CLIP, optim.clip_norm *= 2, OPTIMIZER, false, true)                                          \
    X(KIND, optim.optim.kind = HTH_OPTIM_LAMB, OPTIMIZER, true, true)                              \
    X(TARGET, share.target *= 4, BATCH, false, true)                                               \
    X(DELAYED, share.delayed = true, BATCH, false, true)                                           \
    X(MAJORITY, share.strict = true, BATCH, false, true)                                           \
    X(FORMAT, share.format = HTH_QUANT_F16, BATCH, false, true)                                    \
    X(CLIPS, share.clip = 2, BATCH, false, true)                                                   \
    X(STATES, share.states = !o->share.states, MODE, true, true)                                   \
    X(GRID, share.meeting++, GRID, true, true)                                                     \
    X(SEED, model.seed++, MODEL, true, true)                                                       \
    X(WIDTH, model.d *= 2, MODEL, true, true)                                                      \
    X(ROWS, micro_batch *= 2, MODEL, false, false)                                                 \
    X(STEPS, updates_max *= 2, MODEL, false, false)

enum {
#define NAME(name, change, setting, local, batch) name,
    CHANGE_MAP(NAME) CHANGES
};

static void change(struct hth_trainer_opts *o, int what)
{
#define CHANGE(name, change, setting, local, batch)                                                \
    if (what == name)                                                                              \
        o->change;
    CHANGE_MAP(CHANGE)
}

static const struct {
    enum hth_setting setting;
    bool local, batch;
} rules[] = {
#define RULE(name, change, setting, local, batch) {HTH_SETTING_##setting, local, batch},
    CHANGE_MAP(RULE)};

TEST(each_setting_changes_the_schema_where_it_matters)
{
    for (int mode = HTH_SHARE_LOCAL; mode <= HTH_SHARE_BATCH; mode++) {
        struct hth_trainer_opts o = usual((enum hth_share_mode)mode);
        struct hth_settings same = settings_of(&o);

        for (int i = 0; i < CHANGES; i++) {
            struct hth_trainer_opts other = o;
            bool differs = mode == HTH_SHARE_BATCH ? rules[i].batch : rules[i].local;
            struct hth_settings its;

            change(&other, i);
            its = settings_of(&other);
            for (uint32_t setting = 0; setting < HTH_ROSTER_SETTINGS; setting++)
                if ((its.hash[setting] != same.hash[setting]) !=
                    (differs && setting == rules[i].setting))
                    fail_msg("mode %d, change %d, setting %u", mode, i, setting);
            assert_int_equal(hth_settings_schema(&its, 0) != hth_settings_schema(&same, 0),
                             differs);
        }
        assert_true(hth_settings_schema(&same, 0) != hth_settings_schema(&same, 1));
    }
}

/* ---- two of them ----------------------------------------------------------------------------- */

static struct {
    int what;        /* of member 1; CHANGES: the mode */
    bool bootstraps; /* member 1 does */
    bool strangers;  /* may take part */
    bool turns;      /* member 0 changes instead, from that moment */
} differs;

static void edit(void *arg, uint32_t i, struct hth_trainer_opts *t)
{
    t->data.peer = i + 1;
    if (i == 0 && differs.turns)
        change(t, GRID);
    if (i == 0)
        return;
    t->share.bootstrap = differs.bootstraps;
    t->share.strangers = differs.strangers;
    if (differs.what == CHANGES)
        t->share.mode = HTH_SHARE_LOCAL;
    else
        change(t, differs.what);
}

/* One trainer trains; some seconds later another one joins. */
static struct crew_scene *two(int what, bool bootstraps)
{
    struct hth_crew_opts o = crew_batch_opts(1, 24);
    struct crew_scene *f;

    differs.what = what;
    differs.bootstraps = bootstraps;
    differs.turns = false;
    o.trainer.optim = usual(HTH_SHARE_BATCH).optim;
    o.trainer.checkpoint_path = "trunk.safetensors";
    o.trainer.checkpoint_every = 1;
    o.trainer.resume = true;
    o.edit = edit;
    f = crew_scene_new(11, &o);
    hth_world_run_for(f->world, 5 * S);
    assert_true(crew_stats(f, 0).updates > 0);
    assert_int_equal(hth_crew_join(f->crew), 1);
    hth_world_run_for(f->world, 8 * S);
    return f;
}

static void check_differ(struct crew_scene *f, uint32_t i, uint32_t trainers, const char *differ)
{
    struct hth_other_settings others;

    hth_settings_others(hth_crew_roster(f->crew, i), &others);
    assert_int_equal(others.trainers, trainers);
    assert_string_equal(others.differ, differ);
}

/* The second trainer ends and can say why; the first one counts no other trainer with a state. */
TEST(second_trainer_with_other_settings_ends)
{
    static const struct {
        int change;
        const char *differ;
    } cases[] = {{TOTAL, OPTIM}, {KIND, OPTIM},   {TARGET, BATCH}, {GRID, MEETING},
                 {SEED, MODEL},  {CHANGES, MODE}, {STATES, MODE}};

    for (size_t i = 0; i < HTH_ARRAY_LEN(cases); i++) {
        struct crew_scene *f = two(cases[i].change, false);
        uint64_t updates = crew_stats(f, 0).updates;

        assert_int_equal(hth_crew_err(f->crew), HTH_E_OTHER_SETTINGS);
        assert_int_equal(crew_stats(f, 1).updates, 0);
        check_differ(f, 1, 1, cases[i].differ);
        check_differ(f, 0, 0, "");
        hth_world_run_for(f->world, 1 * S);
        assert_true(crew_stats(f, 0).updates > updates);
        crew_scene_free(f);
    }
}

/* ... unless it has `bootstrap`, or strangers take part, one of whom may be the other: then both
 * train, neither averages, and both can say why. */
TEST(bootstrap_begins_a_second_run)
{
    for (int strangers = 0; strangers < 2; strangers++) {
        differs.strangers = strangers;
        struct crew_scene *f = two(TARGET, !strangers);

        differs.strangers = false;
        assert_ok(hth_crew_err(f->crew));
        assert_true(crew_stats(f, 1).updates > 0);
        for (uint32_t i = 0; i < 2; i++) {
            struct hth_share_stats share = crew_stats(f, i).share;

            assert_int_equal(share.steps_shared + share.catch_ups, 0);
            assert_int_equal(hth_roster_population(hth_crew_roster(f->crew, i), NULL), 1);
            check_differ(f, i, 1, BATCH);
        }
        crew_scene_free(f);
    }
}

/* A trainer that resumes a checkpoint written under its settings continues, even if the others have
 * other settings. With other settings it would begin another run, and is refused. */
TEST(resumed_checkpoint_continues_only_under_its_settings)
{
    for (int turns = 0; turns < 2; turns++) {
        struct crew_scene *f = two(TARGET, true);
        uint64_t updates = crew_stats(f, 0).updates;

        assert_ok(hth_crew_err(f->crew));
        differs.turns = turns;
        crew_crash(f, 0, HTH_CRASH_RESET);
        hth_world_run_for(f->world, 1 * S);
        crew_restart(f, 0);
        hth_world_run_for(f->world, 8 * S);
        check_differ(f, 0, 1, turns ? BATCH "; " MEETING : BATCH);
        assert_int_equal(hth_crew_err(f->crew), turns ? HTH_E_OTHER_SETTINGS : HTH_OK);
        assert_true(turns ? crew_stats(f, 0).own_samples == 0 : crew_stats(f, 0).updates > updates);
        crew_scene_free(f);
    }
}

/* Trainers that differ in their own options only average with each other. Records carry 32 bits of
 * each setting: one with another schema and settings that look equal still differs, and does not
 * hide a difference of another one. A record without a schema is of a peer that does not train yet,
 * as it may still read its data; it says nothing of settings. */
TEST(own_options_do_not_separate_trainers)
{
    static const uint32_t none[HTH_ROSTER_SETTINGS] = {0};
    struct crew_scene *f = two(ROWS, false);
    struct hth_share_stats share = crew_stats(f, 1).share;
    const struct hth_roster_note *first = hth_roster_self(hth_crew_roster(f->crew, 0));
    struct hth_settings alike, other;

    assert_int_equal(hth_crew_join(f->crew), 2);
    hth_world_run_for(f->world, 8 * S);
    assert_ok(hth_crew_err(f->crew));
    assert_true(share.catch_ups + share.run.means > 0 && share.steps_shared > 0);
    check_differ(f, 0, 0, "");
    for (uint32_t i = 0; i < HTH_ROSTER_SETTINGS; i++)
        alike.hash[i] = first->settings[i] | UINT64_C(1) << 32;
    other = alike;
    other.hash[HTH_SETTING_GRID]++;
    hth_settings_set(hth_crew_roster(f->crew, 1), &alike, 0);
    hth_world_run_for(f->world, 5 * S);
    check_differ(f, 0, 1, "setting");
    hth_settings_set(hth_crew_roster(f->crew, 2), &other, 0);
    hth_world_run_for(f->world, 5 * S);
    check_differ(f, 0, 2, MEETING);
    hth_roster_set_schema(hth_crew_roster(f->crew, 1), 0, none);
    hth_roster_set_schema(hth_crew_roster(f->crew, 2), 0, none);
    hth_world_run_for(f->world, 5 * S);
    check_differ(f, 0, 0, "");
    crew_scene_free(f);
}
