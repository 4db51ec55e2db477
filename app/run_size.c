/* SPDX-License-Identifier: Apache-2.0 */
/* run_size.c: counts parameters as the modules do. */
#include "app/run_size.h"

#include "cli/cli.h"
#include "cli/config.h"
#include "experts/kind.h"
#include "kernels/optim.h"

/* The trunk always has room for two moments (kernels/params.h). */
#define TRUNK_STATES 2

static struct hth_run_size size_of(uint64_t parameters, uint32_t states)
{
    return (struct hth_run_size){.parameters = parameters,
                                 .memory = parameters * (2 + states + 2) * sizeof(float),
                                 .disk = parameters * (1 + states) * sizeof(float)};
}

static enum hth_err find_expert_size(const char *path, const struct hth_runfile *run,
                                     struct hth_run_sizes *out)
{
    struct hth_expert_opts expert;
    hth_config_expert(run, &expert);
    const struct hth_expert_kind *kind = hth_expert_kind_find(expert.kind);
    enum hth_err err = kind->shape(&expert.shape);
    if (err == HTH_OK && kind->weights(&expert.shape) > HTH_EXPERT_PARAMS_MAX)
        err = HTH_E_TOO_LARGE;
    if (err != HTH_OK) {
        hth_cli_say_error("%s: experts of width %u: %s", path, run->model.dim, hth_err_text(err));
        return HTH_E_CONFIG;
    }
    out->expert = size_of(kind->weights(&expert.shape), hth_optim_slots(&expert.optim));
    out->experts = hth_config_grids(run);
    for (uint32_t i = 0; i < run->model.grid_count; i++)
        out->experts *= run->model.grid[i];
    return HTH_OK;
}

enum hth_err hth_run_sizes(const char *path, const struct hth_runfile *run,
                           struct hth_run_sizes *out)
{
    struct hth_model_opts model;
    uint64_t trunk;
    *out = (struct hth_run_sizes){.experts = 0};
    hth_config_model(run, &model);
    if (!model.dense)
        HTH_TRY(find_expert_size(path, run, out));
    enum hth_err err = hth_model_count(&model, &trunk);
    if (err != HTH_OK) {
        hth_cli_say_error("%s: the trunk: %s", path, hth_err_text(err));
        return HTH_E_CONFIG;
    }
    out->trunk = size_of(trunk, TRUNK_STATES);
    return HTH_OK;
}
