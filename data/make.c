/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: a table of sources. */
#include "data/make.h"

#include "data/emoji.h"
#include "data/fashion.h"

#define FILES_MAX 64

static const char *arg_or(const struct hth_make *m, size_t i, const char *otherwise)
{
    return i < m->arg_count ? m->args[i] : otherwise;
}

static enum hth_err fill_emoji(struct hth_make *m, struct hth_pack *pack)
{
    return hth_emoji_pack(m->env, arg_or(m, 0, HTH_EMOJI_FONT), arg_or(m, 1, HTH_EMOJI_LIST), pack,
                          m->progress, m->progress_arg, &m->why);
}

static enum hth_err fill_fashion(struct hth_make *m, struct hth_pack *pack)
{
    return hth_fashion_pack(m->env, arg_or(m, 0, HTH_FASHION_DIR), m->pack.side, pack, m->progress,
                            m->progress_arg, &m->why);
}

static enum hth_err fill_folder(struct hth_make *m, struct hth_pack *pack)
{
    m->folder.dir = m->args[0];
    m->folder.progress = m->progress;
    m->folder.progress_arg = m->progress_arg;
    return hth_folder_pack(m->env, &m->folder, pack, &m->why);
}

static enum hth_err fill_text(struct hth_make *m, struct hth_pack *pack)
{
    for (size_t i = 0; i < m->arg_count; i++)
        HTH_TRY(hth_text_pack(m->env, m->args[i], pack, m->progress, m->progress_arg, &m->why));
    return HTH_OK;
}

/* Emoji: the held-out names combine words that the training part has apart, so skin tones alone are
 * held out; all words are kept, as half of them come once. */
const struct hth_make_source hth_make_sources[] = {
    {"emoji",
     0,
     2,
     "at most a font and Unicode's emoji-test.txt",
     {.name = "emoji",
      .licence = HTH_EMOJI_LICENCE,
      .kind = HTH_SET_PICTURES,
      .side = 32,
      .test_of = "skin tone",
      .caption_min = 1,
      .words_min = 1},
     fill_emoji},
    {"fashion",
     0,
     1,
     "at most a folder",
     {.name = "fashion-mnist",
      .licence = HTH_FASHION_LICENCE,
      .kind = HTH_SET_PICTURES,
      .side = HTH_FASHION_SIDE,
      .caption_min = 1,
      .words_min = 1},
     fill_fashion},
    {"folder",
     1,
     1,
     "a folder",
     {.name = "my-data",
      .licence = "",
      .kind = HTH_SET_PICTURES,
      .side = 32,
      .caption_min = 3,
      .words_min = 2},
     fill_folder},
    {"text",
     1,
     FILES_MAX,
     "one or more files",
     {.name = "my-text", .licence = "", .kind = HTH_SET_TEXT, .words_min = 2},
     fill_text},
    {0},
};

static void set_defaults(struct hth_pack_opts *o, const struct hth_pack_opts *otherwise)
{
    o->kind = otherwise->kind;
    o->test_of = otherwise->test_of;
    o->name = o->name != NULL ? o->name : otherwise->name;
    o->licence = o->licence != NULL ? o->licence : otherwise->licence;
    o->side = o->side > 0 ? o->side : otherwise->side;
    o->caption_min = o->caption_min > 0 ? o->caption_min : otherwise->caption_min;
    o->words_min = o->words_min > 0 ? o->words_min : otherwise->words_min;
    o->aspect_max = o->aspect_max > 0 ? o->aspect_max : 2;
}

enum hth_err hth_make_run(const struct hth_make_source *source, struct hth_make *m,
                          struct hth_pack **pack, const struct hth_manifest **out)
{
    set_defaults(&m->pack, &source->defaults);
    HTH_TRY(hth_pack_new(m->env, &m->pack, pack, &m->why));
    HTH_TRY(source->fill(m, *pack));
    return hth_pack_finish(*pack, out, &m->why);
}
