/* SPDX-License-Identifier: Apache-2.0 */
/* runfile_about.c: the purpose of each key of a run file, in a line or two. */
#include "cli/runfile.h"

#include <string.h>

struct about {
    const char *path, *text;
};

static const struct about abouts[] = {
    {"run", "name of the swarm; peers with another name never meet; required"},
    {"seed", "of weights, noise and the order of the data"},
    {"compute", "type of products, in trunk and experts; auto: each machine's fastest"},
    {"model.kind", "classifier of pictures, lm of text, picture: draws from captions"},
    {"model.dim", "width of the trunk and of every expert"},
    {"model.layers", "mixture layers, or with expert none layers of the trunk"},
    {"model.inputs", "classifier: numbers of a picture: pixels, or 3 times as many with colours"},
    {"model.classes", "classifier: classes of the data, at least"},
    {"model.heads", "lm, picture: heads of attention; dim is an even multiple"},
    {"model.context", "lm: ids of one sequence"},
    {"model.vocab",
     "lm, picture: ids of text; 256: bytes; 258 and more: padding, begin, bytes, and\n"
     "the commonest words of the data set"},
    {"model.words", "the words.json that ids come from; another one is refused; hosts need none"},
    {"model.codebook", "picture: the code book's file, likewise"},
    {"model.objective", "lm: predict the next id, or ids that are hidden (BERT)"},
    {"model.text", "picture: ids of a caption with its begin; longer ones are cut"},
    {"model.height", "picture: rows of codes"},
    {"model.width", "picture: codes in a row"},
    {"model.codes", "picture: numbers of the code book"},
    {"model.image_weight", "picture: weight of the codes' loss beside the text's 1"},
    {"model.masks", "picture: which codes a layer sees besides the text: all before, those of the\n"
                    "row, of the column, or near ones; in turns"},
    {"model.last_mask", "picture: ... in the last layer"},
    {"model.window", "picture: side of the square that conv sees; odd"},
    {"model.share", "lm, picture: weight sets that the layers use in turns; 0: each its own"},
    {"model.share_last", "the last layer shares, too"},
    {"model.tied", "lm: the output layer is the embedding; picture always is"},
    {"model.embed_dim",
     "with tied: embeddings are factors of this width (ALBERT); 0: they are not"},
    {"model.layer_scale", "lm, picture: initial factor of each branch, learnt; 0: none"},
    {"model.grid", "experts of one layer"},
    {"model.top_k", "experts that a row uses"},
    {"model.expert", "network of an expert; none: feed-forwards in the trunk and no hosts"},
    {"model.balance", "weight of the loss that keeps all experts in use"},
    {"model.noise", "standard deviation added to gate scores in training"},
    {"data.kind", "idx files, a text file, or set: a folder that hearth data made"},
    {"data.path", "of the data; sought in the current folder, then beside the run file"},
    {"data.shuffle_rows", "samples in the shuffle buffer"},
    {"data.shift", "classifier: each picture is moved by up to so much on both axes"},
    {"data.caption_drop", "picture: so many samples lose their caption in training"},
    {"train.rows", "samples of one micro-batch"},
    {"train.flights", "micro-batches in the air at once"},
    {"train.steps", "updates of the run"},
    {"train.eval_every", "updates between two tests"},
    {"train.eval_rows", "samples of a test; 0: all; the last test has all"},
    {"train.k_min", "replies that a row needs before the grace time starts"},
    {"train.grace_s", "wait for slower replies, after k_min"},
    {"train.timeout_s", "the longest wait for a host"},
    {"train.wire", "type of rows to and from experts; auto: fp32 with compute fp32, else bf16"},
    {"train.checkpoint_every", "updates between two checkpoints"},
    {"optimizer.kind", "steps the trunk's weights; experts have an optimizer of their own"},
    {"optimizer.rate", "the highest learning rate"},
    {"optimizer.weight_decay", "of weights, not of biases and norms"},
    {"optimizer.momentum", "sgd"},
    {"optimizer.trust_max", "lamb: bound of ||w|| / ||step|| of a tensor; 0: none"},
    {"optimizer.schedule", "after the warm-up; linear and cosine fall to a twentieth at total"},
    {"optimizer.warmup", "steps in which the rate rises from 0"},
    {"optimizer.total", "steps until the schedule ends; an expert counts its own"},
    {"optimizer.clip", "bound of the gradient's norm; 0: none"},
    {"experts.step_rows", "rows after which an expert steps ..."},
    {"experts.step_age_s", "... or seconds after the first of them"},
    {"experts.batch_rows_max", "rows that a host computes at once"},
    {"experts.norm_max", "bound of a row's gradient of its own loss; 0: none"},
    {"averaging.mode", "trainers step alone and average, share each batch, or do neither"},
    {"averaging.every", "local: updates between averages of parameters; 0: never"},
    {"averaging.format", "of matrices on the wire"},
    {"averaging.states", "local: average the optimiser's states, too"},
    {"averaging.target", "batch: samples of a step, of all trainers together"},
    {"averaging.delayed", "batch: gather the next batch while this one is averaged"},
    {"averaging.majority", "batch, of a part without most of the last trainers: strict: it waits;\n"
                           "eventual: it goes on, and the parts become one model when they meet"},
    {"averaging.grid", "a fixed grid of trainers; left out: by their number"},
    {"averaging.group", "most trainers in one average"},
    {"averaging.clip", "a trainer further off than so many medians weighs less; 0: off"},
    {"admission.owner", "public key that closes the run: every peer needs an invite of its owner,\n"
                        "which `hearth owner` makes; left out: anybody may take part"},
    {"admission.private", "the run is hidden from everybody who has no invite"},
    {"averaging.share_max", "no trainer reduces more than so many mean shares"},
};

const char *hth_runfile_about(const char *path)
{
    for (size_t i = 0; i < HTH_ARRAY_LEN(abouts); i++)
        if (strcmp(abouts[i].path, path) == 0)
            return abouts[i].text;
    return "";
}
